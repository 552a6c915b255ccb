"""`manyhands calibrate`: measure this machine, for the predictions of `simulate`, `validate` and `advise`."""

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from manyhands.calibration.engines import check_calibrated
from manyhands.cli.options import CALIBRATION, CommandOption, Json, check_early, command_options, default_is
from manyhands.cli.show import finish, meter, people, results, say, warn
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.measurement.budget import parse_duration
from manyhands.record.calibration import Calibration, ClosingRun, CommCosts, RowTimes, TaskCosts
from manyhands.record.texts import NOTHING, figure, fixed, milliseconds, percent, signed_percent
from manyhands.report.tables.table import Column, Table, tabulate

if TYPE_CHECKING:
    from manyhands.model.correction import Correction

ENGINES, BUDGET, TASK = "threads,mpi", "90s", "mlp"
OPTIONS = {
    "engines": CommandOption(str, "Engines whose calls to measure: threads, mpi or torch.", ENGINES),
    "ranks": CommandOption(int, "The most ranks to measure at once.", "the cores"),
    "budget": CommandOption(str, "Time that the command may take: 30s, 2m.", BUDGET),
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

    Example: manyhands calibrate mlp cnn
    """
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
        *(Column(f"{engine} ×{ranks}\ntakes ×", factor(engine, ranks), drop=1) for engine, ranks in crowds),
        Column("steps", lambda point: f"{len(point.compute_ms):,}", drop=4),
    ]
    return tabulate(columns, costs.points, caption)


def _calls_table(comms: Sequence[CommCosts]) -> Table:
    """Return the table of the fits to the engines' calls: latency, bandwidth, and how far off they are."""
    columns: list[Column[CommCosts]] = [
        Column("engine", lambda comm: comm.engine, left=True),
        Column("ranks", lambda comm: ", ".join(map(str, sorted({point.ranks for point in comm.points}))), drop=3),
        Column("α latency", lambda comm: f"{comm.latency_us:.1f} µs"),
        Column("1/β bandwidth", lambda comm: _rate(comm.gigabyte_per_s)),
        Column("1/γ adding", lambda comm: _rate(comm.reduce_gigabyte_per_s), drop=2),
        Column("error of\nthe fit", lambda comm: percent(comm.error_pct, 0)),
        Column("of formulas for", _formulas, drop=1, left=True),
    ]
    return tabulate(columns, comms, "calls between ranks (in a cluster file: latency_us, gigabit_per_s)")


def _runs_table(calibration: Calibration, runs: Sequence[ClosingRun]) -> Table:
    """Return the table of real runs: what was predicted for them, and what corrects predictions from now on."""
    from manyhands.model.correction import correction  # slow to import, but the measurement has imported it already

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
    where = f" between {comm.hosts} hosts" if comm.apart else ""
    return "slices of shared memory" if comm.model == "slices" else f"messages{where}, {comm.duplex} duplex"


def _rate(gigabyte_per_s: float) -> str:
    """Write a rate in the unit of cluster files, gigabits per second."""
    from manyhands.calibration.fits import FASTEST  # slow to import, but the measurement has imported it already

    return f"{figure(8 * gigabyte_per_s)} Gb/s" if gigabyte_per_s < FASTEST else "too fast to tell"
