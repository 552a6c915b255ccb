"""`manyhands train`: train a task."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyhands.cli.options import SETTINGS, ConfigFile, Json, RunsFolder, command_options, read_settings
from manyhands.cli.show import finish, people, progress, say
from manyhands.cli.tables import print_table
from manyhands.launch.environment import leads
from manyhands.record.texts import count

if TYPE_CHECKING:
    from manyhands.record.run import RunRecord


RUNS = Path("runs")


@command_options({}, SETTINGS)
def train(
    task: Annotated[str, typer.Argument(help="Task to train; may be left out with --config.")] = "",
    config: ConfigFile = None,
    out: RunsFolder = RUNS,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run that has a checkpoint.")] = False,
    resume_from: Annotated[
        str, typer.Option(help="Go on with this run: an id, part of one, a folder, or 'last'.")
    ] = "",
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train TASK: softmax, mlp, mlp-sigmoid, cnn, dnn, recommender, or your own FILE.py:VARIABLE.

    Example: manyhands train mlp --engine mpi --workers 4 --epochs 2
    """
    task, settings = read_settings(task, config, options, example="manyhands train mlp")
    from manyhands.run import train as train_task  # imports torch: a bad request is refused before

    with progress(Path(task).name, visible=leads()) as observe:
        record = train_task(task, resume=resume_from or resume, out=out, observe=observe, **settings)
    if leads():
        show(record, out)
        say(f"kept in {out / record.id}")
    finish(record, as_json=json and leads())


def show(record: "RunRecord", out: Path) -> None:
    """Print the record's table, and notes on how far its figures can be trusted; `out` is the folder of its run."""
    from manyhands.report.tables.runs import compared_table

    caption = f"{record.task}: {record.parameters:,} parameters, {record.steps:,} steps"
    print_table(people, compared_table([record], caption=caption))
    cores = record.hardware["cores"] * len({rank.host for rank in record.ranks})
    if record.engine == "sim":
        say("the clocks of engine sim's virtual ranks stand still; to predict times: manyhands simulate")
    elif len(record.ranks) > cores:
        say(f"{len(record.ranks)} ranks shared {cores} cores: these times say little about how the work scales")
    if record.config.chosen_blas_threads:
        threads = count(record.config.chosen_blas_threads, "thread")
        say(f"matrix products used {threads} in each worker, by a short trial; --blas-threads sets it")
    if record.engine != "sim" and record.others is not None and record.others.disturbed:
        say(f"{record.others} meanwhile: on a quiet machine it is faster")
    if record.stopped_early:
        say(f"stopped early at step {record.steps:,}: {_waited(record)}")
    if record.best_step is not None:
        say(f"the weights are those of step {record.best_step:,}, with the best {record.config.monitor}")
    if record.status == "interrupted":
        hint = "no checkpoint, since --checkpoint-every was not given"
        if record.config.checkpoint_every:
            elsewhere = ["--out", str(out)] if out != RUNS else []
            resuming = ["manyhands", "train", record.task, "--resume-from", record.id, *elsewhere]
            hint = f"go on with: {shlex.join(resuming)}"
        say(f"stopped at step {record.steps}; {hint}")


def _waited(record: "RunRecord") -> str:
    """Say for how many evaluations the monitored figure has not become better."""
    return f"{record.config.monitor} was no better in {count(record.config.patience, 'evaluation')}"
