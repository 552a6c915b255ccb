"""`manyhands calibrate`: measure this machine, so that `simulate` and `advise` know what they talk about."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from manyhands.cli.options import JSON_OPTION, default_is
from manyhands.cli.show import meter, people, print_json, results
from manyhands.errors import check
from manyhands.launch.places import calibration_path
from manyhands.record.calibration import Calibration, CommCosts, TaskCosts
from manyhands.record.texts import figure
from manyhands.request import absolute

ENGINES = "threads,mpi"
BUDGET = "60s"
TASK = "mlp"
WIDE = 200
"""Columns of a table that goes to a file."""

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
    budget: Annotated[str, typer.Option(help="Time that it may take: 30s, 2m.")] = BUDGET,
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
    from manyhands.lab.budget import parse_duration
    from manyhands.lab.calibrate import calibrate as measure  # scipy is slow to import, and other commands need none

    check(ranks != 0, "ranks must be at least 2, got 0")
    path = calibration or calibration_path()
    names = tasks or [TASK]
    chosen = list(dict.fromkeys(each.strip() for each in engines.split(",") if each.strip()))
    with meter() as tell, redirect_stdout(sys.stderr):
        found = measure(
            names,
            path=path,
            engines=chosen,
            ranks=ranks or 0,
            budget_s=parse_duration(budget),
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
        _print(console, f"{Path(name).name}: a step of one worker, ms ({many})", _steps(found, costs))
    _print(
        console,
        "calls between ranks (in a cluster file: latency_us, gigabit_per_s)",
        _calls([found.comms[engine] for engine in engines]),
    )


def _steps(found: Calibration, costs: TaskCosts) -> Table:
    """Make the table of a task's steps: of one worker alone, and how many times as long others make them."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    crowds = sorted({(each.engine, each.ranks) for each in found.contention if each.task == costs.task})
    parts = ("forward and\nbackward p50", "\np90", "update\np50", "\np90")
    shared = [f"{engine} ×{ranks}\ntakes ×" for engine, ranks in crowds]
    for heading in ("\nrows", *parts, *shared, "\nsteps"):
        table.add_column(heading, justify="right", no_wrap=True)
    factors = {
        (each.engine, each.ranks, each.rows): f"{each.compute_factor:.2f}"
        for each in found.contention
        if each.task == costs.task
    }
    for point in costs.points:
        quantiles = [*np.quantile(point.compute_ms, (0.5, 0.9)), *np.quantile(point.serial_ms, (0.5, 0.9))]
        with_others = [factors.get((*crowd, point.rows), "–") for crowd in crowds]
        steps = f"{len(point.compute_ms):,}"
        table.add_row(f"{point.rows:,}", *(f"{ms:.3f}" for ms in quantiles), *with_others, steps)
    return table


def _calls(comms: Sequence[CommCosts]) -> Table:
    """Make the table of what fits the engines' calls best."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    headings = ("engine", "ranks", "α latency", "1/β bandwidth", "1/γ adding", "error of the fit", "of formulas for")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in (headings[0], headings[-1]) else "right", no_wrap=True)
    for each in comms:
        counts = sorted({point.ranks for point in each.points})
        where = f" between {each.hosts} hosts" if each.apart else ""
        fitted = "slices of shared memory" if each.model == "slices" else f"messages{where}, {each.duplex} duplex"
        table.add_row(
            each.engine,
            ", ".join(map(str, counts)),
            f"{each.latency_us:.1f} µs",
            _rate(each.gigabyte_per_s),
            _rate(each.reduce_gigabyte_per_s),
            f"{each.error_pct:.0f} %",
            fitted,
        )
    return table


def _rate(gigabyte_per_s: float) -> str:
    """Write a rate as cluster files have it."""
    from manyhands.lab.calibration_fits import FASTEST  # slow to import, but it has measured already

    return f"{figure(8 * gigabyte_per_s)} Gb/s" if gigabyte_per_s < FASTEST else "too fast to tell"


def _print(console: Console, title: str, table: Table) -> None:
    console.print(f"\n{title}", markup=False, soft_wrap=True)
    to = console if console.is_terminal else Console(file=console.file, width=WIDE, highlight=False)
    to.print(table, soft_wrap=False)
