"""`manyhands advise`: how to reach an accuracy soonest, what it costs, why, and what to type."""

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
from manyhands.measurement.budget import parse_duration
from manyhands.record.advice import AdviceRecord, AdviceRow
from manyhands.record.texts import percent, workers_name

if TYPE_CHECKING:
    from manyhands.advice.advise import AdvicePulse

OUT = Path("advice")


def advise(
    task: TASK_ARGUMENT = "",
    target_accuracy: Annotated[
        float | None, typer.Option(help="Share of the test samples to get right: 0.98.", show_default=False)
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Where it shall run: a FILE.toml, or ethernet-1g, ethernet-10g, infiniband or nvlink."
            f"{default_is('this host')}",
            show_default=False,
        ),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="The most that the training may cost on the cluster.", show_default=False)
    ] = None,
    max_workers: Annotated[
        int,
        typer.Option(
            help=f"The most workers to use.{default_is('the cores of this host, or 1,024 on a cluster')}",
            show_default=False,
        ),
    ] = 0,
    engines: Annotated[
        str,
        typer.Option(
            help=f"Engines to choose from.{default_is('those that were calibrated; mpi on a cluster')}",
            show_default=False,
        ),
    ] = "",
    syncs: Annotated[
        str,
        typer.Option(
            "--syncs",
            "--sync",
            help="Strategies to choose from."
            f"{default_is('all whose answer is that of one worker, and local-sgd:period=8')}",
            show_default=False,
        ),
    ] = "",
    budget: Annotated[
        str, typer.Option(help="Time after which trainings end: 90s, 5m; noise and predictions take time besides.")
    ] = "5m",
    max_epochs: Annotated[
        int,
        typer.Option(
            help="Epochs after which one worker that has not reached the accuracy is given up."
            f"{default_is('5 times the task’s own')}",
            show_default=False,
        ),
    ] = 0,
    calibration: CALIBRATION_OPTION = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of all advice.")] = OUT,
    json: JSON_OPTION = False,
) -> None:
    """Say how TASK reaches an accuracy soonest: the best engine, strategy, workers and batch, and what to type.

    One worker is trained until it is there, and the noise of its gradient tells what larger batches need. Steps are
    predicted from what 'manyhands calibrate' has measured. What seems best is trained too, as n workers would.

    Example: manyhands advise mlp --target-accuracy 0.9 --cluster ethernet-10g
    """
    check(bool(task), "which task? for example: manyhands advise mlp --target-accuracy 0.9")
    check(target_accuracy is not None, "which accuracy? for example: --target-accuracy 0.9")
    check_early(task, {})
    check_names(syncs)
    check_calibrated(engines)
    budget_s = parse_duration(budget)
    from manyhands.advice.advise import advise as find  # torch is slow to import: a bad request is refused before

    with meter() as tell, redirect_stdout(sys.stderr):
        record = find(
            task,
            target_accuracy or 0.0,
            cluster=cluster,
            max_cost=max_cost,
            max_workers=max_workers,
            engines=engines,
            syncs=syncs,
            calibration=calibration,
            budget_s=budget_s,
            max_epochs=max_epochs,
            out=out,
            command=shlex.join(["manyhands", *sys.argv[1:]]),
            observe=lambda pulse: tell("advising", 0, None, _doing(pulse)),
            say=lambda sentence: _say(f"warning: {sentence}"),
        )
    show(record, people if json else results)
    if record.status == "interrupted":
        _say("stopped: this is what was known until then")
    _say(f"kept in {out / record.id}; to draw it: manyhands report {shlex.quote(str(out / record.id))}")
    if json:
        print_json(record.model_dump_json())
    if record.status == "interrupted":
        raise typer.Exit(130)


def show(record: AdviceRecord, console: Console) -> None:
    """Print the best ways, why they are, what would change that, and what it is based on."""
    from manyhands.report.tables.advice import best_table

    def tell(text: str = "") -> None:
        console.print(text, markup=False, soft_wrap=True)

    where = f"on {record.cluster}, from a calibration of {record.machine} ({record.calibrated})"
    tell(f"{Path(record.task).name} to {100 * record.target_accuracy:g} % {where}: predicted, with 90 % intervals\n")
    print_table(console, best_table(record), title="")
    for i, row in enumerate(record.best, 1):
        tell(f"\n{i}. {_name(row)}")
        for reason in row.reasons:
            tell(f"   {reason}")
        tell(f"   $ {row.command}")
    tell(f"\n{record.noise}")
    for sentence in record.next:
        tell(sentence)
    for sentence in record.doubts:
        tell(f"doubtful: {sentence}")
    tell(f"\n{record.considered:,} ways were looked at.")
    for sentence in record.measured:
        tell(f"  {sentence}")
    for sentence in record.assumed:
        tell(f"  assumed: {sentence}")


def _name(row: AdviceRow) -> str:
    sync = f" {row.sync}" if row.workers > 1 else ""
    return f"{workers_name(row.engine, row.workers)}{sync}, batch {row.batch_size:,}, learning rate {row.lr:g}"


def _say(sentence: str) -> None:
    people.print(sentence, markup=False, soft_wrap=True)


def _doing(pulse: "AdvicePulse") -> str:
    accuracy = "" if pulse.accuracy is None else f": accuracy {percent(100 * pulse.accuracy, 2)}"
    return f"{pulse.doing}{accuracy}"
