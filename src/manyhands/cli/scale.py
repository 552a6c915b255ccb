"""`manyhands scale`: measure how a task scales over workers, say where the time went, and draw the report."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from manyhands.cli.bars import BarText, ProgressBars, eta
from manyhands.cli.options import JSON_OPTION, check_early, check_names, config_options, default_is
from manyhands.cli.show import people, print_json, results
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.machine import facts
from manyhands.record import Cell, SweepDir, SweepRecord
from manyhands.record.labels import cell_name
from manyhands.record.texts import rate
from manyhands.scaling.defaults import BUDGET, SET_BY_SWEEP, THREADS, check_kind

if TYPE_CHECKING:
    from manyhands.scaling.observer import SweepObserver, SweepPulse

OUT = Path("scales")


def _option(text: str, default: str = "") -> Any:
    return typer.Option(help=f"{text}{default_is(default) if default else ''}", show_default=False)


@partial(config_options, without=SET_BY_SWEEP)
def scale(
    kind: Annotated[
        str,
        typer.Argument(help="strong: the same batch for however many workers; weak: the same batch for each worker."),
    ] = "",
    task: Annotated[
        str, typer.Argument(help="softmax, mlp, mlp-sigmoid, cnn, dnn, recommender, or your own FILE.py:VARIABLE.")
    ] = "",
    workers: Annotated[str | None, _option("How many workers: 1,2,4,8.", "1, 2, 4, … up to the cores")] = None,
    engines: Annotated[
        str | None, _option("How the workers run: threads, mpi, hybrid, torch or ray.", "threads,mpi")
    ] = None,
    syncs: Annotated[
        str | None,
        _option("What they exchange: allreduce,local-sgd:period=8; 'manyhands syncs' lists them.", "allreduce"),
    ] = None,
    batch_sizes: Annotated[str | None, _option("Batch sizes of one worker alone: 64,512.", "the task's")] = None,
    image_sizes: Annotated[str | None, _option("Sides of the images: 28,56,112.", "as they are")] = None,
    threads: Annotated[int | None, _option("Worker threads in each process of engine hybrid.", f"{THREADS}")] = None,
    budget: Annotated[
        str | None,
        _option("Time that the command may take, report and all: 90s, 5m, 1h; chooses steps and repeats.", BUDGET),
    ] = None,
    over_budget: Annotated[
        bool, typer.Option("--over-budget", help="Run every cell once even if that takes longer than the budget.")
    ] = False,
    repeats: Annotated[int | None, _option("Runs of each cell.", "5 to 15, or fewer in a short budget")] = None,
    steps: Annotated[int | None, _option("Steps of each run.", "25 or more, or fewer in a short budget")] = None,
    epochs: Annotated[int | None, _option("Epochs of each run, instead of --steps.")] = None,
    blas_threads: Annotated[
        int | None, _option("Threads inside each worker's matrix products.", "1: one worker is one core")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest sweep of this kind and task that was stopped.")
    ] = False,
    resume_from: Annotated[
        str, typer.Option(help="Go on with this sweep: an id, part of one, a folder, or 'last'.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of all sweeps.")] = OUT,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Draw the report.")] = True,
    json: JSON_OPTION = False,
    *,
    options: dict[str, Any],
) -> None:
    """Measure how TASK scales over workers: speed-up, efficiency, what was lost where; then draw a report.

    Every cell (engine × workers × …) is run in turn, five times or more unless --repeats or a short --budget says
    otherwise; of fewer runs no interval is told. A budget that is too short to run each cell once is refused.

    One worker alone is what they are compared with. A run that fails is a marked row.

    A sweep that is stopped with Ctrl-C goes on with --resume.

    Example: manyhands scale strong mlp --workers 1,2 --engines threads,mpi --budget 2m
    """
    check(bool(kind), "strong or weak? for example: manyhands scale strong mlp")
    check_kind(kind)
    check(bool(task), f"which task? for example: manyhands scale {kind} mlp")
    check_early(task, options)
    check_names(syncs, engines)
    from manyhands.scaling.sweep import sweep  # torch is slow to import: a bad request is refused before

    asked = {
        "workers": workers,
        "engines": engines,
        "syncs": syncs,
        "batch_sizes": batch_sizes,
        "image_sizes": image_sizes,
        "threads": threads,
        "budget": budget,
        "over_budget": over_budget or None,
        "repeats": repeats,
        "steps": steps,
        "epochs": epochs,
        "blas_threads": blas_threads,
    }
    given = {name: value for name, value in {**asked, **options}.items() if value is not None}
    with _progress() as observe, redirect_stdout(sys.stderr):
        folder, record = sweep(
            kind,
            task,
            out=out,
            resume=resume_from or resume,
            observe=observe,
            options=given,
            spent_s=facts.command_age_s(),
        )
    show(record, people if json else results)
    if record.status == "interrupted":
        _say(f"stopped; go on with: {_resume_command(record, task, folder)}")
    elif report:
        _draw(folder)
    _say(f"kept in {folder.path}")
    if json:
        print_json(record.model_dump_json())
    if record.status == "interrupted":
        raise typer.Exit(130)
    if not any(row.repeats for row in record.rows if row.cell.role == "cell"):
        raise typer.Exit(1)


def show(record: SweepRecord, console: Console) -> None:
    """Print what was measured: how fast, where the time went, the laws fitted, and the explanation in words."""
    from manyhands.report import words
    from manyhands.report.tables import sweeps

    if not record.measures:
        return
    console.print(words.headline(record), markup=False, soft_wrap=True)
    console.print(words.circumstances(record), markup=False, soft_wrap=True)
    for table in sweeps.scaling_tables(record, sweeps.ON_TERMINAL):
        console.print()
        print_table(console, table)
    for note in sweeps.notes(record):
        console.print(note, markup=False, soft_wrap=True)
    if record.fits:
        console.print()
        print_table(console, sweeps.fits_table(record), "laws of scaling, fitted")
    console.print()
    for line in words.explanation(record):
        console.print(line, markup=False, soft_wrap=True)


def _draw(sweep: SweepDir) -> None:
    from manyhands.report import files

    beside = ", ".join(path.name for path in files.write(sweep) if path != sweep.report)
    _say(f"report: {sweep.report} (open it in a browser; beside it: {beside})")


def _say(sentence: str) -> None:
    people.print(sentence, markup=False, soft_wrap=True)


def _resume_command(record: SweepRecord, task: str, folder: SweepDir) -> str:
    out = folder.path.parent
    elsewhere = ["--out", str(out)] if out != OUT else []
    return shlex.join(["manyhands", "scale", record.kind, task, "--resume-from", folder.path.name, *elsewhere])


@contextmanager
def _progress() -> "Iterator[SweepObserver]":
    """Draw one bar over the whole sweep on a terminal; elsewhere print a line after every run."""
    from manyhands.scaling.observer import SweepObserver

    if not people.is_terminal:
        yield SweepObserver(_print_line, _say)
        return
    bars = ProgressBars(people)
    with bars.progress:
        bar = bars.add("starting")

        def draw(pulse: "SweepPulse") -> None:
            parts = [BarText(f"run {pulse.done}/{pulse.total}"), BarText(_rest(pulse), 1, cuts=True)]
            bars.show(
                bar,
                pulse.done,
                pulse.total,
                parts,
                name="pilot" if pulse.repeat < 0 else _round(pulse),
                left_s=pulse.eta_s,
            )

        def confirm(sentence: str) -> bool:
            bars.progress.stop()
            _say(sentence)
            yes = sys.stdin.isatty() and typer.confirm("take the time it needs?", err=True)
            if yes:
                bars.progress.start()
            return yes

        yield SweepObserver(draw, _say, confirm)


def _print_line(pulse: "SweepPulse") -> None:
    if pulse.measure is not None:
        left = "" if pulse.eta_s is None else f" · {eta(pulse.eta_s)}"
        _say(f"{_round(pulse)} · {_rest(pulse)}{left}")


def _round(pulse: "SweepPulse") -> str:
    if pulse.repeat < 0:
        return f"pilot {pulse.done}/{pulse.total}"
    return f"repeat {pulse.repeat + 1}/{pulse.repeats}"


def _rest(pulse: "SweepPulse") -> str:
    """Say which cell runs, and what came out."""
    name, run = name_of_cell(pulse.cell), pulse.measure
    if run is None:
        return f"{name} …"
    if run.failed:
        return f"{name} failed: {run.failed}"
    if not run.step_ms:
        return f"{name} … took no time that can be measured"
    disturbed = f", while {run.others}" if run.others is not None and run.others.disturbed else ""
    return f"{name} … {rate(run.batch_size / run.step_ms * 1e3)} samples/s{disturbed}"


def name_of_cell(cell: Cell) -> str:
    """Say in short what a cell is: `mpi ×2, batch 64`; a probe is one worker with a smaller batch."""
    image = f", {cell.image_size} px" if cell.image_size else ""
    data = f", data ×{cell.replicate}" if cell.replicate > 1 else ""
    return f"{cell_name(cell)}, batch {cell.batch_size}{image}{data}"
