"""`manyhands validate`: predict, then run, then say how far off the predictions were."""

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from manyhands.cli.calibrate import CALIBRATION_OPTION
from manyhands.cli.options import JSON_OPTION, TASK_ARGUMENT, default_is
from manyhands.cli.show import meter, people, print_json, results
from manyhands.errors import check
from manyhands.record.simulation import LEDGER, Validation, ValidationRecord, read_validations
from manyhands.record.texts import duration, plus_minus, with_bounds

if TYPE_CHECKING:
    from manyhands.lab.validate import Case, ValidationPulse

OUT = Path("validations")


def validate(
    task: TASK_ARGUMENT = "",
    workers: Annotated[
        str | None, typer.Option(help="How many workers: 1,2,4 or 1,2,4,...,16.", show_default=False)
    ] = None,
    engines: Annotated[
        str,
        typer.Option(
            help=f"How the workers run: threads, mpi or torch.{default_is('those that were calibrated')}",
            show_default=False,
        ),
    ] = "",
    syncs: Annotated[
        str, typer.Option("--syncs", "--sync", help="What they exchange: allreduce,local-sgd:period=8.")
    ] = "allreduce",
    batch_size: Annotated[
        str | None,
        typer.Option(
            help=f"Global batch size, shared out over the workers.{default_is('the task’s')}", show_default=False
        ),
    ] = None,
    batch_per_worker: Annotated[
        int | None,
        typer.Option(help="Batch size of each worker; the global batch grows with the workers.", show_default=False),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each configuration, at least 5.")] = 5,
    steps: Annotated[
        int,
        typer.Option(help=f"Steps of each run.{default_is('about two seconds of them')}", show_default=False),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Decides what is drawn.")] = 0,
    calibration: CALIBRATION_OPTION = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of all validations.")] = OUT,
    json: JSON_OPTION = False,
) -> None:
    """Predict the step times of TASK on this host, run the same, and print predicted against measured.

    All is predicted, and written down, before anything is run. Every configuration is run at least 5 times, in turn.

    What came out is added to validations.jsonl in the folder of all validations.

    Example: manyhands validate mlp --workers 1,2 --engines threads,mpi --syncs allreduce,local-sgd:period=8
    """
    from manyhands.lab.validate import validate as compare  # scipy is slow to import, and other commands need none

    check(bool(task), "which task? for example: manyhands validate mlp --workers 1,2")
    check(workers is not None, "how many workers? for example: --workers 1,2")
    with meter() as tell, redirect_stdout(sys.stderr):
        record = compare(
            task,
            workers or "",
            engines=engines,
            syncs=syncs,
            calibration=calibration,
            batch_size=batch_size,
            batch_per_worker=batch_per_worker,
            repeats=repeats,
            steps=steps,
            seed=seed,
            out=out,
            command=shlex.join(["manyhands", *sys.argv[1:]]),
            observe=lambda pulse: tell(
                "running", pulse.done, pulse.total, _rest(pulse), line=pulse.measure is not None
            ),
            observe_prediction=lambda pulse: tell("predicting", pulse.done, pulse.total, f"predicting {pulse.sync}"),
            say=lambda sentence: _say(f"warning: {sentence}"),
        )
    show(record, people if json else results)
    folder = out / record.id
    if record.status == "interrupted":
        _say("stopped: what was measured until then is kept, but not counted")
        _say(f"kept in {folder}; to draw it: manyhands report {shlex.quote(str(folder))}")
    else:
        _say(_so_far(read_validations(out / LEDGER)))
        _say(f"kept in {folder}; to draw all validations: manyhands report {shlex.quote(str(out))}")
    if json:
        print_json(record.model_dump_json())
    if record.status == "interrupted":
        raise typer.Exit(130)
    if not record.rows:
        raise typer.Exit(1)


def show(record: ValidationRecord, console: Console) -> None:
    """Print predicted against measured, and how good that is on the whole."""
    if record.rows:
        console.print("a step, predicted (90 % interval) and measured (median of the runs)\n", markup=False)
        to = console if console.is_terminal else Console(file=console.file, width=160, highlight=False)
        to.print(_table(record), soft_wrap=False)
    for key, reason in record.failed.items():
        console.print(f"{key}: no run went well: {reason}", markup=False, soft_wrap=True)
    if any(row.oversubscribed for row in record.rows):
        console.print("† more ranks than cores: not counted below", markup=False, soft_wrap=True)
    if record.median_error_pct is not None:
        share = 100 * record.held / record.of
        console.print(
            f"median error {record.median_error_pct:.1f} %; the interval held in {record.held} of {record.of} "
            f"({share:.0f} %; of right intervals 90 % do)",
            markup=False,
            soft_wrap=True,
        )


def _table(record: ValidationRecord) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("engine", "workers", "sync", "predicted", "measured", "error", "noise", "interval"):
        table.add_column(heading, justify="left" if heading in ("engine", "sync") else "right", no_wrap=True)
    for row in record.rows:
        table.add_row(
            row.engine,
            f"{row.workers}{'†' if row.oversubscribed else ''}",
            escape(row.sync),
            with_bounds(row.predicted_ms, lambda ms: duration(ms / 1e3)),
            duration(row.median_ms / 1e3),
            f"{row.error_pct:+.1f} %",
            plus_minus(row.noise_pct),
            "held" if row.held else "missed",
        )
    return table


def _so_far(rows: list[Validation]) -> str:
    """Say how good all predictions so far were whose ranks had a core each."""
    telling = [row for row in rows if not row.oversubscribed]
    if not telling:
        return "nothing was validated so far whose ranks had a core each"
    held = sum(row.held for row in telling)
    return f"of all {len(telling)} validated so far the interval held in {held} ({100 * held / len(telling):.0f} %)"


def _say(sentence: str) -> None:
    people.print(sentence, markup=False, soft_wrap=True)


def _rest(pulse: "ValidationPulse") -> str:
    """Say which configuration runs, and what came out."""
    name, run = f"{pulse.done}/{pulse.total} {_name(pulse.case)}", pulse.measure
    if run is None:
        return f"{name} …"
    return f"{name} failed: {run.failed}" if run.failed else f"{name}: {duration(run.step_ms / 1e3)}"


def _name(case: "Case") -> str:
    return f"{case.engine} ×{case.row.workers} {case.row.sync}"
