"""`manyhands calibrate`: measure this machine, so that `simulate` and `advise` know what they talk about."""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from manyhands.calibration.engines import check_calibrated
from manyhands.cli.options import JSON_OPTION, check_early, default_is
from manyhands.cli.show import meter, people, print_json, results
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.measurement.budget import parse_duration
from manyhands.record.calibration import Calibration, CommCosts, RowTimes, TaskCosts
from manyhands.record.texts import NOTHING, figure, fixed, percent
from manyhands.report.tables.table import Column, Table, tabulate

ENGINES = "threads,mpi"
BUDGET = "60s"
TASK = "mlp"

CALIBRATION_OPTION = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help=f"File with the machine's calibration.{default_is('one for each machine in your data folder')}",
        show_default=False,
    ),
]
"""For every command that reads or writes one."""


def calibrate(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK...", help=f"Tasks whose steps to measure.{default_is(TASK)}", show_default=False),
    ] = None,
    engines: Annotated[str, typer.Option(help="Engines whose calls to measure: threads, mpi or torch.")] = ENGINES,
    ranks: Annotated[
        int | None,
        typer.Option(help=f"The most ranks to measure at once.{default_is('the cores')}", show_default=False),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time that the command may take: 30s, 2m.")] = BUDGET,
    over_budget: Annotated[
        bool, typer.Option("--over-budget", help="Measure everything once even if that takes longer than the budget.")
    ] = False,
    calibration: CALIBRATION_OPTION = None,
    json: JSON_OPTION = False,
) -> None:
    """Measure this machine in about a minute, for simulate, validate and advise.

    How long a step takes, by the rows of a worker; what the calls between ranks take; and how much longer a step takes
    while other ranks share the machine.

    It is kept in a file for this machine; more tasks and engines can be added later.

    Let no other program run meanwhile.

    Where mpiexec starts ranks on several hosts, such as those of HYDRA_HOST_FILE or of a batch system, --engines mpi
    --ranks 2 measures the link between two of them. Keep that in a file of its own with --calibration: with it simulate
    and validate mean hosts like these with one worker each.

    Example: manyhands calibrate mlp cnn
    """
    check(ranks != 0, "ranks must be at least 2, got 0")
    names = tasks or [TASK]
    budget_s = parse_duration(budget)
    for name in names:
        check_early(name, {})
    check_calibrated(engines, "engine to calibrate")
    from manyhands.calibration.calibrate import (
        calibrate as measure,  # torch is slow to import: a bad request is refused before
    )
    from manyhands.request import absolute

    path = calibration or calibration_path()
    chosen = list(dict.fromkeys(each.strip() for each in engines.split(",") if each.strip()))
    with meter() as tell, redirect_stdout(sys.stderr):
        found = measure(
            names,
            path=path,
            engines=chosen,
            ranks=ranks or 0,
            budget_s=budget_s,
            over_budget=over_budget,
            spent_s=facts.command_age_s(),
            observe=lambda progress: tell("calibrating", progress.done, 1.0, progress.label),
            say=lambda sentence: people.print(f"warning: {sentence}", markup=False, soft_wrap=True),
        )
    show(found, [absolute(name) for name in names], chosen, people if json else results)
    people.print(f"kept in {path}", markup=False, soft_wrap=True)
    if json:
        print_json(found.model_dump_json())


def show(found: Calibration, names: Sequence[str], engines: Sequence[str], console: Console) -> None:
    """Print the steps of these tasks, and the calls of these engines."""
    console.print(f"{found.machine}, {found.made}", markup=False, soft_wrap=True)
    for name in names:
        costs = found.tasks[name]
        many = f"{costs.parameters:,} parameters, batch {costs.batch_size:,}"
        console.print()
        print_table(console, _steps_table(found, costs, f"{Path(name).name}: a step of one worker, ms ({many})"))
    console.print()
    print_table(console, _calls_table([found.comms[engine] for engine in engines]))


def _steps_table(found: Calibration, costs: TaskCosts, caption: str) -> Table:
    """Return the table of a task's steps: of one worker alone, and how many times as long others make them."""
    import numpy as np  # slow to import, but it has measured already

    def quantile(part: str, q: float) -> Callable[[RowTimes], str]:
        return lambda point: fixed(float(np.quantile(getattr(point, part), q)), 3)

    def factor(engine: str, ranks: int) -> Callable[[RowTimes], str]:
        return lambda point: factors.get((engine, ranks, point.rows), NOTHING)

    contention = [each for each in found.contention if each.task == costs.task]
    factors = {(each.engine, each.ranks, each.rows): f"{each.compute_factor:.2f}" for each in contention}
    crowds = sorted({(each.engine, each.ranks) for each in contention})
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
    """Return the table of what fits the engines' calls best."""
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


def _formulas(comm: CommCosts) -> str:
    where = f" between {comm.hosts} hosts" if comm.apart else ""
    return "slices of shared memory" if comm.model == "slices" else f"messages{where}, {comm.duplex} duplex"


def _rate(gigabyte_per_s: float) -> str:
    """Write a rate as cluster files have it."""
    from manyhands.calibration.fits import FASTEST  # slow to import, but it has measured already

    return f"{figure(8 * gigabyte_per_s)} Gb/s" if gigabyte_per_s < FASTEST else "too fast to tell"
