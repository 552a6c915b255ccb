"""`manyhands calibrate`: measure this machine, for the predictions of `simulate`, `validate` and `advise`."""

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from manyhands.calibration.engines import check_calibrated
from manyhands.cli.options import (
    CALIBRATION,
    DEVICE,
    CommandOption,
    Json,
    check_device_name,
    check_early,
    command_options,
    default_is,
)
from manyhands.cli.show import finish, meter, people, results, say, warn
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.measurement.budget import parse_duration
from manyhands.record.calibration import Calibration, ClosingRun, CommCosts, CopyTimes, RowTimes, TaskCosts
from manyhands.record.texts import NOTHING, figure, fixed, milliseconds, num_bytes, percent, signed_percent
from manyhands.report.tables.table import Column, Table, tabulate
from manyhands.spec import cut_list

if TYPE_CHECKING:
    from manyhands.model.runs.correction import Correction

ENGINES, BUDGET, TASK = "threads,mpi", "90s", "mlp"
GPU_ENGINE = "torch"
OPTIONS = {
    "device": DEVICE,
    "engines": CommandOption(
        str, "Engines whose calls to measure: threads, mpi or torch.", f"{ENGINES}; torch for GPUs"
    ),
    "ranks": CommandOption(int, "The most ranks to measure at once.", "the cores"),
    "budget": CommandOption(str, "Time that the command may take: 30s, 2m.", BUDGET),
    "link": CommandOption(
        str, "Link between GPUs, nvlink or pcie, whose typical figures count where calls between GPUs are not measured."
    ),
    "over_budget": CommandOption(bool, "Measure everything once even if that takes longer than the budget."),
    "calibration": CALIBRATION,
}


@command_options(OPTIONS)
def calibrate(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK...", help=f"Tasks whose steps to measure.{default_is(TASK)}", show_default=False),
    ] = None,
    json: Json = False,
    *,
    request: dict[str, Any],
) -> None:
    """Measure this machine in a minute and a half, for simulate, validate and advise.

    It measures how long a step takes, by the rows of a worker; how long the calls between ranks take; and how much
    longer a step takes while other ranks share the machine.

    It ends with real runs, predicted from these measurements: what they are off by corrects later predictions, and how
    much runs differ widens their intervals. Earlier calibrations are kept, and count in the same way.

    The result is kept in a file for this machine; more tasks and engines can be added later.

    Let no other program run meanwhile.

    Where mpiexec starts ranks on several hosts, such as those of HYDRA_HOST_FILE or of a batch system, --engines mpi
    --ranks 2 measures the link between two of them. Keep that in a file of its own with --calibration: from that file
    simulate and validate predict such hosts with one worker each.

    With --device cuda it measures steps by rows on a GPU, as train makes them, and copies to and from it; calls
    between GPUs if there are several. With one GPU, or with --link, calls follow a formula for that link.

    Example: manyhands calibrate mlp cnn

    Example: manyhands calibrate mlp --device cuda --calibration gpu.json
    """
    device = request.pop("device", "cpu")
    check_device_name(device)
    if device == "cuda":
        _calibrate_gpu(tasks or [TASK], request, as_json=json)
        return
    check("link" not in request, "--link belongs to --device cuda; add it")
    check(request.get("ranks") != 0, "ranks must be at least 2, got 0")
    names = tasks or [TASK]
    budget_s = parse_duration(request.pop("budget", BUDGET))
    for name in names:
        check_early(name, {})
    engines = request.pop("engines", ENGINES)
    check_calibrated(engines, "engine to calibrate")
    from manyhands.request import absolute
    from manyhands.validation.closing import calibrate as measure  # imports torch: a bad request is refused before

    path = request.pop("calibration", None) or calibration_path()
    chosen = list(dict.fromkeys(engine.strip() for engine in engines.split(",") if engine.strip()))
    with meter() as tell:
        calibration = measure(
            names,
            **request,
            path=path,
            engines=chosen,
            budget_s=budget_s,
            spent_s=facts.command_age_s(),
            observe=lambda progress: tell("calibrating", progress.done, 1.0, progress.label),
            say=warn,
        )
    show(calibration, [absolute(name) for name in names], chosen, people if json else results)
    say(f"kept in {path}")
    finish(calibration, as_json=json)


def _calibrate_gpu(names: Sequence[str], request: dict[str, Any], *, as_json: bool) -> None:
    """Measure this machine's GPUs, and print what was measured and what follows a formula."""
    engines = request.pop("engines", GPU_ENGINE)
    check(
        set(filter(None, cut_list(engines))) == {GPU_ENGINE},
        f"GPUs are calibrated with engine {GPU_ENGINE}, whose ranks have one each and talk by nccl; got '{engines}'",
    )
    for option in ("ranks", "over_budget"):
        check(option not in request, f"--{option.replace('_', '-')} is for CPUs; leave it out with --device cuda")
    budget_s = parse_duration(request.pop("budget", BUDGET))
    for name in names:
        check_early(name, {})
    from manyhands.request import absolute
    from manyhands.validation.closing import calibrate as measure  # imports torch: a bad request is refused before

    path = request.pop("calibration", None) or calibration_path("cuda")
    with meter() as tell:
        calibration = measure(
            names,
            device="cuda",
            **request,
            path=path,
            budget_s=budget_s,
            spent_s=facts.command_age_s(),
            observe=lambda progress: tell("calibrating", progress.done, 1.0, progress.label),
            say=warn,
        )
    console = people if as_json else results
    show(calibration, [absolute(name) for name in names], [GPU_ENGINE], console)
    say(f"kept in {path}")
    finish(calibration, as_json=as_json)


def show(calibration: Calibration, names: Sequence[str], engines: Sequence[str], console: Console) -> None:
    """Print the steps of the named tasks, and the calls of the engines."""
    say(f"{calibration.machine}, {calibration.made}", to=console)
    for name in names:
        costs = calibration.tasks[name]
        size = f"{costs.parameters:,} parameters, batch {costs.batch_size:,}"
        console.print()
        print_table(console, _steps_table(calibration, costs, f"{Path(name).name}: a step of one worker, ms ({size})"))
    console.print()
    print_table(console, _calls_table([calibration.comms[engine] for engine in engines]))
    runs = [run for run in calibration.closing if run.task in names and run.engine in {"serial", *engines}]
    if runs:
        console.print()
        print_table(console, _runs_table(calibration, runs))
    if calibration.copies:
        console.print()
        print_table(console, _copies_table(calibration.copies))
    for link in filter(None, (calibration.comms[engine].formula for engine in engines)):
        say(f"calls between GPUs: by formula for {link}, not measured here", to=console)


def _steps_table(calibration: Calibration, costs: TaskCosts, caption: str) -> Table:
    """Return the table of a task's steps: of one worker alone, and by what factor other ranks slow them down."""
    import numpy as np  # slow to import, but the measurement has imported it already

    def quantile(part: str, q: float) -> Callable[[RowTimes], str]:
        return lambda point: fixed(float(np.quantile(getattr(point, part), q)), 3)

    def factor(engine: str, ranks: int) -> Callable[[RowTimes], str]:
        return lambda point: factors.get((engine, ranks, point.rows), NOTHING)

    factors = {
        (cost.engine, cost.ranks, cost.rows): f"{cost.compute_factor:.2f}"
        for cost in calibration.contention
        if cost.task == costs.task
    }
    crowds = sorted({(engine, ranks) for engine, ranks, _ in factors})
    columns: list[Column[RowTimes]] = [
        Column("rows", lambda point: f"{point.rows:,}"),
        Column("forward and\nbackward p50", quantile("compute_ms", 0.5)),
        Column("forward and\nbackward p90", quantile("compute_ms", 0.9), drop=2),
        Column("update\np50", quantile("serial_ms", 0.5)),
        Column("update\np90", quantile("serial_ms", 0.9), drop=3),
        *(Column(_crowd_title(calibration, *crowd), factor(*crowd), drop=1) for crowd in crowds),
        Column("times", lambda point: f"{len(point.compute_ms):,}", drop=4)
        if calibration.device == "cuda"
        else Column("steps", lambda point: f"{len(point.compute_ms):,}", drop=4),
    ]
    return tabulate(columns, costs.points, caption)


def _crowd_title(calibration: Calibration, engine: str, ranks: int) -> str:
    return "with a wait in\neach step ×" if calibration.device == "cuda" else f"{engine} ×{ranks}\ntakes ×"


def _copies_table(copies: Sequence[CopyTimes]) -> Table:
    """Return the table of copies between host and GPU: their time, and the bandwidth that comes to."""

    def time_of(part: str) -> Callable[[CopyTimes], str]:
        return lambda copy: f"{_median(getattr(copy, part)):.1f} µs"

    def rate_of(part: str) -> Callable[[CopyTimes], str]:
        return lambda copy: figure(1e-3 * copy.num_bytes / _median(getattr(copy, part)))

    columns: list[Column[CopyTimes]] = [
        Column("bytes", lambda copy: num_bytes(copy.num_bytes)),
        Column("to the GPU", time_of("to_device_us")),
        Column("GB/s", rate_of("to_device_us")),
        Column("to the host", time_of("to_host_us")),
        Column("GB/s", rate_of("to_host_us")),
    ]
    return tabulate(columns, copies, "copies between host and GPU")


def _median(values: Sequence[float]) -> float:
    return max(1e-3, statistics.median(values))


def _calls_table(comms: Sequence[CommCosts]) -> Table:
    """Return the table of the fits to the engines' calls: latency, bandwidth, and how far off they are."""
    columns: list[Column[CommCosts]] = [
        Column("engine", lambda comm: comm.engine, left=True),
        Column("ranks", lambda comm: ", ".join(map(str, sorted({p.ranks for p in comm.points}))) or NOTHING, drop=3),
        Column("α latency", lambda comm: f"{comm.latency_us:.1f} µs"),
        Column("1/β bandwidth", lambda comm: _rate(comm.gigabyte_per_s)),
        Column("1/γ adding", lambda comm: _rate(comm.reduce_gigabyte_per_s), drop=2),
        Column("error of\nthe fit", lambda comm: percent(comm.error_pct, 0)),
        Column("of formulas for", _formulas, drop=1, left=True),
    ]
    return tabulate(columns, comms, "calls between ranks (in a cluster file: latency_us, gigabit_per_s)")


def _runs_table(calibration: Calibration, runs: Sequence[ClosingRun]) -> Table:
    """Return the table of real runs: what was predicted for them, and what corrects predictions from now on."""
    from manyhands.model.runs.correction import (
        correction,  # slow to import, but the measurement has imported it already
    )

    def known(run: ClosingRun) -> "Correction":
        engine = run.engine if run.engine != "serial" else next(iter(calibration.comms))
        return correction(calibration, run.task, engine, workers=run.workers, servers=run.servers)

    columns: list[Column[ClosingRun]] = [
        Column("task", lambda run: Path(run.task).name, drop=2, left=True),
        Column("engine", lambda run: f"{run.engine} ×{run.workers}", left=True),
        Column("sync", lambda run: run.sync, drop=1, left=True),
        Column("predicted", lambda run: milliseconds(run.predicted_ms)),
        Column("measured", lambda run: milliseconds(statistics.median(run.measured_ms))),
        Column("error", lambda run: signed_percent(run.error_pct)),
        Column("runs", lambda run: str(len(run.measured_ms)), drop=3),
        Column("corrected\nby ×", lambda run: f"{known(run).factor:.2f}"),
        Column("interval", lambda run: _bound(known(run))),
    ]
    return tabulate(columns, runs, "real runs at the end: a step, predicted from the measurements above and measured")


def _bound(known: "Correction") -> str:
    return NOTHING if known.bound is None else f"×÷ {math.exp(known.bound):.2f}"


def _formulas(comm: CommCosts) -> str:
    if comm.formula:
        return f"{comm.formula}, by formula, not measured here"
    where = f" between {comm.hosts} hosts" if comm.apart else ""
    return "slices of shared memory" if comm.model == "slices" else f"messages{where}, {comm.duplex} duplex"


def _rate(gigabyte_per_s: float) -> str:
    """Write a rate in the unit of cluster files, gigabits per second."""
    from manyhands.calibration.fits import FASTEST  # slow to import, but the measurement has imported it already

    return f"{figure(8 * gigabyte_per_s)} Gb/s" if gigabyte_per_s < FASTEST else "too fast to tell"
