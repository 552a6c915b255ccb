"""`manyhands train`: train a task."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyhands import launch
from manyhands.cli.options import (
    CONFIG_OPTION,
    JSON_OPTION,
    OUT_OPTION,
    check_early,
    config_options,
    with_config_file,
)
from manyhands.cli.show import people, print_json, progress
from manyhands.cli.tables import print_table
from manyhands.config import read_toml
from manyhands.errors import check
from manyhands.record.texts import count

if TYPE_CHECKING:
    from manyhands.record import RunRecord


@config_options
def train(
    task: Annotated[str, typer.Argument(help="Task to train; may be left out with --config.")] = "",
    config: CONFIG_OPTION = None,
    out: OUT_OPTION = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run that has a checkpoint.")] = False,
    resume_from: Annotated[
        str, typer.Option(help="Go on with this run: an id, part of one, a folder, or 'last'.")
    ] = "",
    json: JSON_OPTION = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train TASK: softmax, mlp, mlp-sigmoid, cnn, dnn, recommender, or your own FILE.py:VARIABLE.

    Example: manyhands train mlp --engine mpi --workers 4 --epochs 2
    """
    if config and not task:
        task = str(read_toml(config).get("task", ""))
    check(bool(task), "which task? for example: manyhands train mlp")
    settings = with_config_file(config, options)
    check_early(task, settings)
    from manyhands.run import train as train_task  # torch is slow to import: a bad request is refused before

    leads = launch.make(str(settings.get("engine", "mpi"))).leads
    # What a user's model prints must not mix with the result.
    with progress(Path(task).name, visible=leads) as observe, redirect_stdout(sys.stderr):
        record = train_task(task, resume=resume_from or resume, out=out, observe=observe, **settings)
    if leads:
        show(record, out, as_json=json)
    if record.status == "interrupted":
        raise typer.Exit(130)


def show(record: "RunRecord", out: Path, *, as_json: bool) -> None:
    """Print the record: a table for people, one JSON object for machines."""
    from manyhands.report.tables.runs import compared_table

    caption = f"{record.task}: {record.parameters:,} parameters, {record.steps:,} steps"
    print_table(people, compared_table([record], caption=caption))
    cores = record.hardware["cores"] * len({rank.host for rank in record.ranks})
    if record.engine == "sim":
        note = "the clocks of engine sim's virtual ranks stand still; to predict times: manyhands simulate"
        people.print(note, soft_wrap=True, markup=False)
    elif len(record.ranks) > cores:
        note = f"{len(record.ranks)} ranks shared {cores} cores: these times say little about how the work scales"
        people.print(note, soft_wrap=True, markup=False)
    if record.config.chosen_blas_threads:
        many = count(record.config.chosen_blas_threads, "thread")
        note = f"matrix products used {many} in each worker, by a short trial; --blas-threads sets it"
        people.print(note, soft_wrap=True, markup=False)
    if record.engine != "sim" and record.others is not None and record.others.disturbed:
        people.print(f"{record.others} meanwhile: on a quiet machine it is faster", soft_wrap=True, markup=False)
    if record.status == "interrupted":
        if record.config.checkpoint_every:
            hint = f"go on with: manyhands train {record.task} --resume-from {record.id}"
        else:
            hint = "no checkpoint, since --checkpoint-every was not given"
        people.print(f"stopped at step {record.steps}; {hint}", soft_wrap=True, markup=False)
    people.print(f"kept in {out / record.id}", soft_wrap=True, markup=False)
    if as_json:
        print_json(record.model_dump_json())
