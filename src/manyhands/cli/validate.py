"""`manyhands validate`: predict, then run, then say how far off the predictions were."""

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from manyhands.calibration.engines import check_calibrated
from manyhands.cli.calibrate import CALIBRATION_OPTION
from manyhands.cli.options import JSON_OPTION, TASK_ARGUMENT, check_early, check_names, default_is
from manyhands.cli.show import meter, people, print_json, results
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.record.simulation import LEDGER, Validation, ValidationRecord, read_validations
from manyhands.record.texts import duration, percent, share

if TYPE_CHECKING:
    from manyhands.validation.validate import PredictedCase, ValidationPulse

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
    check(bool(task), "which task? for example: manyhands validate mlp --workers 1,2")
    check(workers is not None, "how many workers? for example: --workers 1,2")
    check_early(task, {})
    check_names(syncs)
    check_calibrated(engines)
    from manyhands.validation.validate import (
        validate as compare,  # torch is slow to import: a bad request is refused before
    )

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
    from manyhands.report.tables.validations import rows_table

    if record.rows:
        print_table(console, rows_table(record.rows))
    for key, reason in record.failed.items():
        console.print(f"{key}: no run went well: {reason}", markup=False, soft_wrap=True)
    if any(row.oversubscribed for row in record.rows):
        console.print("† more ranks than cores: not counted below", markup=False, soft_wrap=True)
    if record.median_error_pct is not None:
        console.print(
            f"median error {percent(record.median_error_pct)}; the interval held in {record.held} of {record.of} "
            f"({share(record.held, record.of, 0)}; of right intervals 90 % do)",
            markup=False,
            soft_wrap=True,
        )


def _so_far(rows: list[Validation]) -> str:
    """Say how good all predictions so far were whose ranks had a core each."""
    telling = [row for row in rows if not row.oversubscribed]
    if not telling:
        return "nothing was validated so far whose ranks had a core each"
    held = sum(row.held for row in telling)
    return f"of all {len(telling)} validated so far the interval held in {held} ({share(held, len(telling), 0)})"


def _say(sentence: str) -> None:
    people.print(sentence, markup=False, soft_wrap=True)


def _rest(pulse: "ValidationPulse") -> str:
    """Say which configuration runs, and what came out."""
    name, run = f"{pulse.done}/{pulse.total} {_name(pulse.case)}", pulse.measure
    if run is None:
        return f"{name} …"
    return f"{name} failed: {run.failed}" if run.failed else f"{name}: {duration(run.step_ms / 1e3)}"


def _name(case: "PredictedCase") -> str:
    return f"{case.engine} ×{case.row.workers} {case.row.sync}"
