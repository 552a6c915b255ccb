"""`manyhands validate`: predict, then run, then say how far off the predictions were."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from manyhands.cli.options import (
    BATCHES,
    CALIBRATION,
    DEVICE,
    CommandOption,
    Json,
    TaskName,
    check_request,
    command_options,
)
from manyhands.cli.show import command_line, finish, meter, people, results, say, say_kept, warn
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.record.simulation import LEDGER, Validation, ValidationRecord, read_validations
from manyhands.record.texts import duration, percent, share

if TYPE_CHECKING:
    from manyhands.validation.validate import ValidationPulse

OPTIONS = {
    "workers": CommandOption(str, "How many workers: 1,2,4 or 1,2,4,...,16."),
    "device": DEVICE,
    "engines": CommandOption(str, "How the workers run: threads, mpi or torch.", "those that were calibrated"),
    "syncs": CommandOption(
        str, "What they exchange: allreduce,local-sgd:period=8.", "allreduce", ("--syncs", "--sync")
    ),
    **BATCHES,
    "repeats": CommandOption(int, "Runs of each configuration, at least 5.", 5),
    "steps": CommandOption(int, "Steps of each run.", "about two seconds of them"),
    "seed": CommandOption(int, "Seed of the step times that are drawn.", 0),
    "calibration": CALIBRATION,
}


@command_options(OPTIONS)
def validate(
    task: TaskName = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of all validations.")] = Path("validations"),
    json: Json = False,
    *,
    request: dict[str, Any],
) -> None:
    """Predict the step times of TASK on this host, run the same, and print predicted against measured.

    All predictions are written down before anything is run. Every configuration is run at least 5 times, in turn.

    The results are added to validations.jsonl in the folder of all validations.

    Example: manyhands validate mlp --workers 1,2 --engines threads,mpi --syncs allreduce,local-sgd:period=8

    Example: manyhands validate mlp --device cuda --workers 1 --batch-size 200
    """
    check_request(task, request, {}, example="manyhands validate mlp --workers 1,2")
    check("workers" in request, "how many workers? for example: --workers 1,2")
    from manyhands.validation.validate import validate as compare  # imports torch: a bad request is refused before

    with meter() as tell:
        record = compare(
            task,
            **request,
            out=out,
            command=command_line(),
            observe=lambda pulse: tell(
                "running", pulse.done, pulse.total, _latest(pulse), line=pulse.measure is not None
            ),
            observe_prediction=lambda pulse: tell("predicting", pulse.done, pulse.total, f"predicting {pulse.sync}"),
            say=warn,
        )
    show(record, people if json else results)
    folder = out / record.id
    if record.status == "interrupted":
        say("stopped: what was measured until then is kept, but not counted")
        say_kept(folder)
    else:
        say(_so_far(read_validations(out / LEDGER)))
        say_kept(folder, out, "all validations")
    finish(record, as_json=json)
    if not record.rows:
        raise typer.Exit(1)


def show(record: ValidationRecord, console: Console) -> None:
    """Print predicted against measured times, their median error, and how many runs their intervals held."""
    from manyhands.report.tables.validations import rows_table

    if record.rows:
        print_table(console, rows_table(record.rows))
    for key, reason in record.failed.items():
        say(f"{key}: every run failed: {reason}", to=console)
    if any(row.oversubscribed for row in record.rows):
        say("† more ranks than cores: not counted below", to=console)
    if record.median_error_pct is not None:
        noise = statistics.median([row.noise_pct or 0.0 for row in record.rows if not row.oversubscribed])
        held = f"{record.held} of {record.of} runs ({share(record.held, record.of, 0)}) were within their intervals"
        say(
            f"median error {percent(record.median_error_pct)}, noise of the runs ±{percent(noise)}",
            f"{held}; of right intervals 90 % are",
            f"the calibration was {record.rows[0].circumstances}",
            to=console,
        )


def _so_far(rows: list[Validation]) -> str:
    """Say how many runs of all validations lay within their intervals, where ranks had a core each."""
    counted = [row for row in rows if not row.oversubscribed]
    if not counted:
        return "nothing was validated so far whose ranks had a core each"
    held, runs = sum(row.held for row in counted), sum(len(row.measured_ms) for row in counted)
    return f"of all {runs} runs validated so far {held} ({share(held, runs, 0)}) were within their intervals"


def _latest(pulse: "ValidationPulse") -> str:
    """Say which configuration runs, or what it measured."""
    row, run = pulse.case.row, pulse.measure
    name = f"{pulse.done}/{pulse.total} {pulse.case.engine} ×{row.workers} {row.sync}"
    if run is None:
        return f"{name} …"
    return f"{name} failed: {run.failed}" if run.failed else f"{name}: {duration(run.step_ms / 1e3)}"
