"""`manyhands simulate`: predict how a task would scale on nodes that one need not have."""

import gc
from collections.abc import Callable, Iterator, Sequence
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
from manyhands.cli.show import LONG_S, Meter, command_line, finish, meter, people, results, say, say_kept, warn
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.record.simulation import SimulationRecord, SimulationRow
from manyhands.record.texts import accuracy_text, duration, factor, milliseconds, with_bounds
from manyhands.record.virtual import Method

if TYPE_CHECKING:
    from manyhands.simulation.simulate import SimulationPulse

MOST_SHOWN = 60
"""Rows of a table; of more, some are shown."""
HOW: dict[Method, str] = {
    "one-worker": "one worker on the whole batches, whose answer is that of many",
    "stacked": "all replicas, batched",
    "one-by-one": "all replicas, one by one",
}
OPTIONS = {
    "nodes": CommandOption(str, "How many nodes: 1,2,4 or 1,2,4,...,1024."),
    "workers": CommandOption(str, "How many workers, instead of --nodes: a node may have several."),
    "cluster": CommandOption(
        str,
        "What the nodes are: a FILE.toml, or ethernet-1g, ethernet-10g, infiniband, nvlink or pcie.",
        "this host, with as many cores as workers",
    ),
    "syncs": CommandOption(
        str,
        "What they exchange: allreduce,local-sgd:period=8; 'manyhands syncs' lists them.",
        "allreduce",
        ("--syncs", "--sync"),
    ),
    "device": DEVICE,
    "engine": CommandOption(str, "Engine whose calls were calibrated: mpi, threads or torch.", "mpi; torch for GPUs"),
    **BATCHES,
    "steps": CommandOption(
        int, "Steps that are simulated of each row, over all seeds.", "50 to 500, the more the fewer workers"
    ),
    "method": CommandOption(
        str, "auto, events (the strategy's own code on virtual ranks) or formula (closed form).", "auto"
    ),
    "seed": CommandOption(int, "Seed of the step times that are drawn, and of a training's initial weights.", 0),
    "train": CommandOption(bool, "Train every row too, as those nodes would: accuracy against their time."),
    "target_accuracy": CommandOption(float, "Accuracy, such as 0.97: --train tells the time to reach it."),
    "calibration": CALIBRATION,
}


@command_options(OPTIONS, settings=("epochs", "lr", "warmup", "lr_decay", "lr_scaling"))
def simulate(
    task: TaskName = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of all simulations.")] = Path("simulations"),
    json: Json = False,
    *,
    request: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Predict step time, speed-up, efficiency and cost of TASK on many nodes, with 90 % intervals.

    Every strategy's own code runs on virtual ranks with clocks. Step times are drawn from this machine's calibration
    (manyhands calibrate); a call takes the time of its algorithm on the cluster's links. Beyond 1,024 ranks there is a
    closed form.

    Slow nodes, failures and prices are part of the cluster's file.

    With --train every row is trained here, with the answer that its nodes would have and in the time predicted for
    them; then --epochs, --lr, --lr-scaling, --lr-decay and --warmup mean the same as for 'manyhands train'.

    Example: manyhands simulate mlp --nodes 1,2,4,...,64 --cluster ethernet-10g --batch-per-worker 64

    With --device cuda the workers are GPUs that engine torch joins by nccl; a node of nvlink or pcie has eight. That
    needs a calibration of a GPU (manyhands calibrate --device cuda), which may come from another machine.

    Example: manyhands simulate mlp --device cuda --workers 1,2,4,8 --cluster nvlink --calibration gpu.json

    Example: manyhands simulate mlp --nodes 1,4,16 --syncs allreduce,async-server --train --target-accuracy 0.9
    """
    check_request(task, request, options, example="manyhands simulate mlp --nodes 1,2,4,...,64")
    check("nodes" in request or "workers" in request, "how many nodes? for example: --nodes 1,2,4,...,64")
    steps = request.get("steps", 1)
    check(steps >= 1, f"steps must be at least 1, got {steps}")
    if request.pop("train", False):
        request["train"] = options
    else:
        for name in ("target_accuracy", *options):
            check(name not in {**request, **options}, f"--{name.replace('_', '-')} belongs to --train; add it")
    from manyhands.simulation.simulate import simulate as predict  # imports torch: a bad request is refused before

    gc.freeze()  # the garbage collector need not look through imported modules: saves a second where rows are very many
    with meter() as tell:
        observe = _observer(tell)
        record = predict(task, **request, out=out, command=command_line(), observe=observe, say=warn)
    show(record, people if json else results)
    if record.status == "interrupted":
        say("stopped; the predictions made until then are kept")
    say_kept(out / record.id)
    finish(record, as_json=json)


def show(record: SimulationRecord, console: Console) -> None:
    """Print the predictions: step times, where a step's time goes, and the best number of nodes."""
    from manyhands.report.simulation_figures import some
    from manyhands.report.tables.simulations import speed_table, split_table, trained_table

    name = Path(record.task).name
    about = f"{name} ({record.parameters:,} parameters, {record.samples:,} samples) on {record.cluster}"
    step, on_device = with_bounds(record.alone_ms, milliseconds), " on GPUs" if record.device == "cuda" else ""
    say(
        f"{about}, engine {record.engine}{on_device}: predicted, with 90 % intervals",
        f"from a calibration of {record.machine} ({record.calibrated}), {record.circumstances}",
        f"one worker alone: {step} a step, batch {record.alone_batch:,}",
        to=console,
    )
    if not record.rows:
        return
    shown = some(record.rows, MOST_SHOWN)
    console.print()
    print_table(console, speed_table(record, shown), "how fast")
    console.print()
    print_table(console, split_table(record, shown), "where a step's time goes")
    if any(row.method == "closed form" for row in shown):
        say("* by closed form, not by following events", to=console)
    if len(shown) < len(record.rows):
        say(f"{len(record.rows) - len(shown):,} rows are left out here; simulation.json has them", to=console)
    console.print()
    say(*_best(record.rows), to=console)
    if record.trained:
        console.print()
        print_table(console, trained_table(record))
        console.print()
    say(*_trained_sentences(record), to=console)


def _best(rows: Sequence[SimulationRow]) -> Iterator[str]:
    """Say where each strategy is fastest."""
    for spec in dict.fromkeys(row.sync for row in rows):
        same = [row for row in rows if row.sync == spec]
        best = max(same, key=lambda row: row.speed_up.value)
        if len(same) > 1:
            more = "" if best is not same[-1] else ", the most that was asked for"
            speed_up = with_bounds(best.speed_up, factor)
            if best.speed_up.value < 1:
                yield f"{spec} is never faster than one worker; the nearest is {best.many}: {speed_up}"
            else:
                yield f"{spec} is fastest on {best.many}{more}: {speed_up}"


def _trained_sentences(record: SimulationRecord) -> Iterator[str]:
    """Say how rows were trained, what their times are, and which row reached the target first."""
    for method in HOW:
        if any(row.method == method for row in record.trained):
            yield f"{method}: {HOW[method]}"
    goal = f"{100 * (record.target_accuracy or 0):g} %"
    if record.target_accuracy is not None:
        yield f"times to {goal} are those of the first evaluation that shows it; evaluations take no time"
    for name, why in record.failed.items():
        yield f"{name} failed: {why}"
    times = [(row.target_s, row) for row in record.trained if row.target_s is not None]
    if times:
        time_s, first = min(times, key=lambda timed: timed[0].value)
        yield f"{goal} is reached first by {first.sync} on {first.many}: {with_bounds(time_s, duration)}"
    elif record.target_accuracy is not None and record.trained:
        shares = [point.accuracy for row in record.trained for point in row.points if point.accuracy is not None]
        best = f"the best is {accuracy_text(max(shares))}: try more --epochs or another --lr"
        yield f"{goal} is reached by none; {best if shares else 'the targets of this task are no classes'}"


def _observer(tell: Meter) -> "Callable[[SimulationPulse], None]":
    """Show predictions, then trainings; a long one gets a line of its own in a log as soon as its time is known."""
    announced = ("", 0)

    def show_pulse(pulse: "SimulationPulse") -> None:
        nonlocal announced
        row = (pulse.sync, pulse.number)
        begins = (pulse.left_s or 0.0) > LONG_S and row != announced
        announced = row if begins else announced
        score = "" if pulse.accuracy is None else f", accuracy {accuracy_text(pulse.accuracy)}"
        now = f"{'trained ' if pulse.trains else ''}{pulse.sync} on {pulse.number:,}{score}"
        phase, one_s = ("training", pulse.left_s) if pulse.trains else ("simulating", None)
        tell(phase, pulse.done, pulse.total, now, line=begins, one_s=one_s)

    return show_pulse
