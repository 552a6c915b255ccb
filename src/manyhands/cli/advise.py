"""`manyhands advise`: how to reach an accuracy soonest, what it costs, why, and what to type."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from manyhands.cli.options import CALIBRATION, DEVICE, CommandOption, Json, TaskName, check_request, command_options
from manyhands.cli.show import command_line, finish, meter, people, results, say, say_kept, warn
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.measurement.budget import parse_duration
from manyhands.record.advice import AdviceRecord, AdviceRow
from manyhands.record.texts import percent, workers_name

if TYPE_CHECKING:
    from manyhands.advice.advise import AdvicePulse

BUDGET = "5m"
OPTIONS = {
    "target_accuracy": CommandOption(float, "Share of the test samples to get right: 0.98."),
    "cluster": CommandOption(
        str, "Where it shall run: a FILE.toml, or ethernet-1g, ethernet-10g, infiniband, nvlink or pcie.", "this host"
    ),
    "max_cost": CommandOption(float, "The most that the training may cost on the cluster."),
    "max_workers": CommandOption(
        int, "The most workers to use.", "the cores or GPUs of this host, or 1,024 on a cluster"
    ),
    "device": DEVICE,
    "engines": CommandOption(
        str, "Engines to choose from.", "those that were calibrated; mpi on a cluster, torch for GPUs"
    ),
    "syncs": CommandOption(
        str,
        "Strategies to choose from.",
        "all whose answer is that of one worker, and local-sgd:period=8",
        ("--syncs", "--sync"),
    ),
    "budget": CommandOption(
        str, "Time after which trainings end: 90s, 5m; noise and predictions take time besides.", BUDGET
    ),
    "max_epochs": CommandOption(
        int, "Epochs after which one worker that has not reached the accuracy is given up.", "5 times the task's own"
    ),
    "calibration": CALIBRATION,
}


@command_options(OPTIONS)
def advise(
    task: TaskName = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of all advice.")] = Path("advice"),
    json: Json = False,
    *,
    request: dict[str, Any],
) -> None:
    """Say how TASK reaches an accuracy soonest: the best engine, strategy, workers and batch, and what to type.

    One worker is trained until it reaches the accuracy; the noise of its gradient tells how many steps larger batches
    need. Step times are predicted from this machine's calibration (manyhands calibrate). The most promising ways are
    trained too, as n workers would train.

    With --device cuda the workers are GPUs, from a calibration of a GPU, which may come from another machine.

    Example: manyhands advise mlp --target-accuracy 0.9 --cluster ethernet-10g

    Example: manyhands advise mlp --target-accuracy 0.9 --device cuda --cluster nvlink
    """
    check_request(task, request, {}, example="manyhands advise mlp --target-accuracy 0.9")
    check("target_accuracy" in request, "which accuracy? for example: --target-accuracy 0.9")
    budget_s = parse_duration(request.pop("budget", BUDGET))
    from manyhands.advice.advise import advise as find_ways  # imports torch: a bad request is refused before

    with meter() as tell:
        record = find_ways(
            task,
            **request,
            budget_s=budget_s,
            out=out,
            command=command_line(),
            observe=lambda pulse: tell("advising", 0, None, _doing(pulse)),
            say=warn,
        )
    show(record, people if json else results)
    if record.status == "interrupted":
        say("stopped: the advice rests on what was measured until then")
    say_kept(out / record.id)
    finish(record, as_json=json)


def show(record: AdviceRecord, console: Console) -> None:
    """Print the best ways, the reasons, what would change them, and which measurements and assumptions they rest on."""
    from manyhands.report.tables.advice import best_table

    where = f"on {record.cluster}, from a calibration of {record.machine} ({record.calibrated}), {record.circumstances}"
    goal = f"{Path(record.task).name} to {100 * record.target_accuracy:g} %"
    say(f"{goal} {where}: predicted, with 90 % intervals\n", to=console)
    print_table(console, best_table(record), title="")
    for i, row in enumerate(record.best, 1):
        reasons = (f"   {reason}" for reason in row.reasons)
        say(f"\n{i}. {_name(row)}", *reasons, f"   $ {row.command}", to=console)
    say(f"\n{record.noise}", *record.next, *(f"doubtful: {sentence}" for sentence in record.doubts), to=console)
    say(f"\n{record.considered:,} ways were looked at.", to=console)
    say(*(f"  {sentence}" for sentence in record.measured), to=console)
    say(*(f"  assumed: {sentence}" for sentence in record.assumed), to=console)


def _name(row: AdviceRow) -> str:
    sync = f" {row.sync}" if row.workers > 1 else ""
    return f"{workers_name(row.engine, row.workers)}{sync}, batch {row.batch_size:,}, learning rate {row.lr:g}"


def _doing(pulse: "AdvicePulse") -> str:
    accuracy = "" if pulse.accuracy is None else f": accuracy {percent(100 * pulse.accuracy, 2)}"
    return f"{pulse.doing}{accuracy}"
