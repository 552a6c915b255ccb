"""`manyhands scale`: measure how a task scales over workers, say where the time went, and draw the report."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from manyhands.cli.bars import eta
from manyhands.cli.options import SETTINGS, CommandOption, Json, TaskName, check_early, check_names, command_options
from manyhands.cli.show import bars_on_terminal, finish, people, results, say
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.machine import facts
from manyhands.record.labels import cell_name
from manyhands.record.sweep import SweepRecord
from manyhands.record.texts import rate
from manyhands.scaling.defaults import BUDGET, SET_BY_SWEEP, THREADS, check_kind

if TYPE_CHECKING:
    from manyhands.record.sweep import Predictions
    from manyhands.scaling.observer import SweepObserver, SweepPulse

OUT = Path("scales")
OPTIONS = {
    "workers": CommandOption(str, "How many workers: 1,2,4,8.", "1, 2, 4, … up to the cores"),
    "engines": CommandOption(str, "How the workers run: threads, mpi, hybrid, torch or ray.", "threads,mpi"),
    "syncs": CommandOption(
        str, "What they exchange: allreduce,local-sgd:period=8; 'manyhands syncs' lists them.", "allreduce"
    ),
    "batch_sizes": CommandOption(str, "Batch sizes of one worker alone: 64,512.", "the task's"),
    "image_sizes": CommandOption(str, "Sides of the images: 28,56,112.", "as they are"),
    "threads": CommandOption(int, "Worker threads in each process of engine hybrid.", THREADS),
    "budget": CommandOption(
        str, "Time that the command may take, report and all: 90s, 5m, 1h; chooses steps and repeats.", BUDGET
    ),
    "over_budget": CommandOption(bool, "Run every cell once even if that takes longer than the budget."),
    "repeats": CommandOption(int, "Runs of each cell.", "5 to 15, or fewer in a short budget"),
    "steps": CommandOption(int, "Steps of each run.", "25 or more, or fewer in a short budget"),
    "epochs": CommandOption(int, "Epochs of each run, instead of --steps."),
    "blas_threads": CommandOption(int, "Threads inside each worker's matrix products.", "1: one worker is one core"),
}


@command_options(OPTIONS, SETTINGS.keys() - SET_BY_SWEEP)
def scale(
    kind: Annotated[
        str,
        typer.Argument(help="strong: the same batch for however many workers; weak: the same batch for each worker."),
    ] = "",
    task: TaskName = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest sweep of this kind and task that was stopped.")
    ] = False,
    resume_from: Annotated[
        str, typer.Option(help="Go on with this sweep: an id, part of one, a folder, or 'last'.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of all sweeps.")] = OUT,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Draw the report.")] = True,
    json: Json = False,
    *,
    request: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Measure how TASK scales over workers: speed-up, efficiency, what was lost where; then draw a report.

    Every cell (engine × workers × …) is run in turn, five times or more unless --repeats or a short --budget says
    otherwise; with fewer runs there is no interval. A budget that is too short to run each cell once is refused.

    The baseline is one worker alone. A run that fails is a marked row. Rows with more ranks than cores are also
    predicted for a machine that has as many, if this one was calibrated: apart from what was measured, and marked.

    A sweep that is stopped with Ctrl-C goes on with --resume.

    Example: manyhands scale strong mlp --workers 1,2 --engines threads,mpi --budget 2m
    """
    check(bool(kind), "strong or weak? for example: manyhands scale strong mlp")
    check_kind(kind)
    check(bool(task), f"which task? for example: manyhands scale {kind} mlp")
    check_early(task, options)
    check_names(request.get("syncs"), request.get("engines"))
    from manyhands.scaling.sweep import sweep  # imports torch: a bad request is refused before

    with _progress() as observe:
        folder, record = sweep(
            kind,
            task,
            out=out,
            resume=resume_from or resume,
            observe=observe,
            options={**request, **options},
            spent_s=facts.command_age_s(),
            predict=_predict,
        )
    show(record, people if json else results)
    if record.status == "interrupted":
        elsewhere = ["--out", str(folder.path.parent)] if folder.path.parent != OUT else []
        resuming = ["manyhands", "scale", record.kind, task, "--resume-from", folder.path.name, *elsewhere]
        say(f"stopped; go on with: {shlex.join(resuming)}")
    elif report:
        from manyhands.report import files

        beside = ", ".join(path.name for path in files.write(folder) if path != folder.report)
        say(f"report: {folder.report} (open it in a browser; beside it: {beside})")
    say(f"kept in {folder.path}")
    finish(record, as_json=json)
    if not any(row.repeats for row in record.rows if row.cell.role == "cell"):
        raise typer.Exit(1)


def show(record: SweepRecord, console: Console) -> None:
    """Print the measurements: how fast, where the time went, the laws fitted, and the explanation in words."""
    from manyhands.report import words
    from manyhands.report.tables import predicted, sweeps

    if not record.measures:
        return
    say(words.headline(record), words.circumstances(record), to=console)
    for table in sweeps.scaling_tables(record, sweeps.ON_TERMINAL):
        console.print()
        print_table(console, table)
    say(*sweeps.notes(record), words.certainty(record), to=console)
    if record.predictions.rows:
        console.print()
        print_table(console, predicted.predictions_table(record), predicted.CAPTION)
    say(*predicted.prediction_notes(record), to=console)
    if record.fits:
        console.print()
        print_table(console, sweeps.fits_table(record), "laws of scaling, fitted")
    say("", *words.explanation(record), to=console)


def _predict(*about: Any) -> "Predictions":
    """Predict rows that cannot be measured; imports the simulator only where there are some."""
    from manyhands.simulation.for_sweeps import predict_rows

    return predict_rows(*about)


@contextmanager
def _progress() -> "Iterator[SweepObserver]":
    """Draw one bar over the whole sweep on a terminal; elsewhere print a line after every run."""
    from manyhands.scaling.observer import SweepObserver

    with bars_on_terminal() as bars:
        bar = bars.add("starting") if bars else None

        def show_pulse(pulse: "SweepPulse") -> None:
            repeat = f"repeat {pulse.repeat + 1}/{pulse.repeats}" if pulse.repeat >= 0 else ""
            if bars and bar is not None:
                bars.show_run(bar, pulse.done, pulse.total, _latest(pulse), pulse.eta_s, repeat or "pilot")
            elif pulse.measure is not None:
                left = "" if pulse.eta_s is None else f" · {eta(pulse.eta_s)}"
                say(f"{repeat or f'pilot {pulse.done}/{pulse.total}'} · {_latest(pulse)}{left}")

        def confirm(sentence: str) -> bool:
            if bars is None:
                return False
            bars.progress.stop()
            say(sentence)
            yes = sys.stdin.isatty() and typer.confirm("take the time it needs?", err=True)
            if yes:
                bars.progress.start()
            return yes

        yield SweepObserver(show_pulse, say, confirm)


def _latest(pulse: "SweepPulse") -> str:
    """Say which cell runs, or what it measured: `mpi ×2, batch 64 … 56,204 samples/s`."""
    cell, run = pulse.cell, pulse.measure
    image = f", {cell.image_size} px" if cell.image_size else ""
    data = f", data ×{cell.replicate}" if cell.replicate > 1 else ""
    name = f"{cell_name(cell)}, batch {cell.batch_size}{image}{data}"
    if run is None:
        return f"{name} …"
    if run.failed:
        return f"{name} failed: {run.failed}"
    if not run.step_ms:
        return f"{name} … took no time that can be measured"
    disturbed = f", while {run.others}" if run.others is not None and run.others.disturbed else ""
    return f"{name} … {rate(run.batch_size / run.step_ms * 1e3)} samples/s{disturbed}"
