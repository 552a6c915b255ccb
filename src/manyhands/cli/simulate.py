"""`manyhands simulate`: predict how a task would scale on nodes that one need not have."""

import gc
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from manyhands.calibration.engines import check_calibrated
from manyhands.cli.calibrate import CALIBRATION_OPTION
from manyhands.cli.options import JSON_OPTION, TASK_ARGUMENT, check_early, check_names, config_options, default_is
from manyhands.cli.show import LONG_S, Tell, meter, people, print_json, results
from manyhands.cli.tables import print_table
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.record.simulation import SimulationRecord, SimulationRow
from manyhands.record.texts import duration, factor, milliseconds, percent, with_bounds
from manyhands.record.virtual import Method

if TYPE_CHECKING:
    from manyhands.simulation.simulate import SimulationPulse

OUT = Path("simulations")
MOST_SHOWN = 60
"""Rows of a table; of more, some are shown."""
OF_TRAINING = frozenset({"epochs", "lr", "warmup", "lr_decay"})
"""Settings of a run that --train takes."""
HOW: dict[Method, str] = {
    "one-worker": "one worker on the whole batches, whose answer is that of many",
    "stacked": "all replicas, batched",
    "one-by-one": "all replicas, one by one",
}


def _option(text: str, default: str = "", *names: str) -> Any:
    return typer.Option(*names, help=f"{text}{default_is(default) if default else ''}", show_default=False)


@partial(config_options, without=RunConfig.model_fields.keys() - OF_TRAINING)
def simulate(
    task: TASK_ARGUMENT = "",
    nodes: Annotated[str | None, _option("How many nodes: 1,2,4 or 1,2,4,...,1024.")] = None,
    workers: Annotated[str | None, _option("How many workers, instead of --nodes: a node may have several.")] = None,
    cluster: Annotated[
        str | None,
        _option(
            "What the nodes are: a FILE.toml, or ethernet-1g, ethernet-10g, infiniband or nvlink.",
            "this host, with as many cores as workers",
        ),
    ] = None,
    syncs: Annotated[
        str,
        _option(
            "What they exchange: allreduce,local-sgd:period=8; 'manyhands syncs' lists them.",
            "allreduce",
            "--syncs",
            "--sync",
        ),
    ] = "allreduce",
    engine: Annotated[str, _option("Engine whose calls were calibrated: mpi, threads or torch.", "mpi")] = "mpi",
    batch_size: Annotated[str | None, _option("Global batch size, shared out over the workers.", "the task's")] = None,
    batch_per_worker: Annotated[
        int | None, _option("Batch size of each worker; the global batch grows with the workers.")
    ] = None,
    steps: Annotated[
        int | None,
        _option("Steps that are simulated of each row, over all seeds.", "50 to 500, the more the fewer workers"),
    ] = None,
    method: Annotated[
        str, _option("auto, events (the strategy's own code on virtual ranks) or formula (closed form).", "auto")
    ] = "auto",
    seed: Annotated[int, _option("Decides what is drawn, and how a training begins.", "0")] = 0,
    train: Annotated[
        bool, typer.Option("--train", help="Train every row too, as those nodes would: accuracy against their time.")
    ] = False,
    target_accuracy: Annotated[
        float | None, _option("Accuracy, such as 0.97, to which --train is to tell the time.")
    ] = None,
    calibration: CALIBRATION_OPTION = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of all simulations.")] = OUT,
    json: JSON_OPTION = False,
    *,
    options: dict[str, Any],
) -> None:
    """Predict step time, speed-up, efficiency and cost of TASK on many nodes, with 90 % intervals.

    Every strategy's own code runs on virtual ranks with clocks. Steps are drawn from what 'manyhands calibrate' has
    measured, and calls cost what their algorithms do on the cluster's links. Beyond 1,024 ranks there is a closed form.

    Slow nodes, failures and prices are part of the cluster's file.

    With --train every row is trained here, with the answer of so many nodes and in the time predicted for them; then
    --epochs, --lr, --lr-scaling, --lr-decay and --warmup are what they are to 'manyhands train'.

    Example: manyhands simulate mlp --nodes 1,2,4,...,64 --cluster ethernet-10g --batch-per-worker 64

    Example: manyhands simulate mlp --nodes 1,4,16 --syncs allreduce,async-server --train --target-accuracy 0.9
    """
    check(bool(task), "which task? for example: manyhands simulate mlp --nodes 1,2,4,...,64")
    check(nodes is not None or workers is not None, "how many nodes? for example: --nodes 1,2,4,...,64")
    check(steps is None or steps >= 1, f"steps must be at least 1, got {steps}")
    asked = {"target_accuracy": target_accuracy, **options}
    alone = [name for name, value in asked.items() if value is not None and not train]
    check(not alone, f"--{alone[0].replace('_', '-') if alone else ''} belongs to --train; add it")
    check_early(task, options)
    check_names(syncs)
    check_calibrated(engine)
    from manyhands.simulation.simulate import (
        simulate as predict,  # torch is slow to import: a bad request is refused before
    )

    gc.freeze()  # what is imported stays; to look through it again and again takes a second where rows are very many
    with meter() as tell, redirect_stdout(sys.stderr):
        record = predict(
            task,
            nodes,
            workers=workers,
            cluster=cluster,
            syncs=syncs,
            engine=engine,
            batch_size=batch_size,
            batch_per_worker=batch_per_worker,
            steps=steps or 0,
            method=method,
            seed=seed,
            train=options if train else None,
            target_accuracy=target_accuracy,
            calibration=calibration,
            out=out,
            command=shlex.join(["manyhands", *sys.argv[1:]]),
            observe=_shown(tell),
            say=lambda sentence: _say(f"warning: {sentence}"),
        )
    show(record, people if json else results)
    if record.status == "interrupted":
        _say("stopped; what was found until then is kept")
    _say(f"kept in {out / record.id}; to draw it: manyhands report {shlex.quote(str(out / record.id))}")
    if json:
        print_json(record.model_dump_json())
    if record.status == "interrupted":
        raise typer.Exit(130)


def show(record: SimulationRecord, console: Console) -> None:
    """Print what is predicted: how fast, where a step's time goes, and what is best."""
    from manyhands.report.simulation_figures import some
    from manyhands.report.tables.simulations import speed_table, split_table, trained_table

    name = Path(record.task).name
    about = f"{name} ({record.parameters:,} parameters, {record.samples:,} samples) on {record.cluster}"
    console.print(f"{about}, engine {record.engine}: predicted, with 90 % intervals", markup=False, soft_wrap=True)
    source = f"from a calibration of {record.machine} ({record.calibrated})"
    console.print(source, markup=False, soft_wrap=True)
    step = with_bounds(record.alone_ms, milliseconds)
    alone = f"one worker alone: {step} a step, batch {record.alone_batch:,}"
    console.print(alone, markup=False, soft_wrap=True)
    if not record.rows:
        return
    shown = some(record.rows, MOST_SHOWN)
    for table, title in (
        (speed_table(record, shown), "how fast"),
        (split_table(record, shown), "where a step's time goes"),
    ):
        console.print()
        print_table(console, table, title)
    if any(row.method == "closed form" for row in shown):
        console.print("* by closed form, not by following events", markup=False, soft_wrap=True)
    if len(shown) < len(record.rows):
        left = len(record.rows) - len(shown)
        console.print(f"{left:,} rows are left out here; simulation.json has them", markup=False, soft_wrap=True)
    console.print()
    for sentence in _best(record.rows):
        console.print(sentence, markup=False, soft_wrap=True)
    if record.trained:
        console.print()
        print_table(console, trained_table(record))
        console.print()
    for sentence in _trained_sentences(record):
        console.print(sentence, markup=False, soft_wrap=True)


def _best(rows: Sequence[SimulationRow]) -> Iterator[str]:
    """Say where each strategy is fastest."""
    for spec in dict.fromkeys(row.sync for row in rows):
        own = [row for row in rows if row.sync == spec]
        best = max(own, key=lambda row: row.speed_up.value)
        if len(own) > 1:
            more = "" if best is not own[-1] else ", the most that was asked for"
            speed_up = with_bounds(best.speed_up, factor)
            if best.speed_up.value < 1:
                yield f"{spec} is never faster than one worker; the nearest is {best.many}: {speed_up}"
            else:
                yield f"{spec} is fastest on {best.many}{more}: {speed_up}"


def _trained_sentences(record: SimulationRecord) -> Iterator[str]:
    """Say how it was computed, what the times are, and who was first."""
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
        time_s, first = min(times, key=lambda each: each[0].value)
        yield f"{goal} is reached first by {first.sync} on {first.many}: {with_bounds(time_s, duration)}"
    elif record.target_accuracy is not None and record.trained:
        best = max(max(point.accuracy for point in row.points) for row in record.trained)
        yield f"{goal} is reached by none; the best is {percent(100 * best, 2)}: try more --epochs or another --lr"


def _say(sentence: str) -> None:
    people.print(sentence, markup=False, soft_wrap=True)


def _shown(tell: Tell) -> "Callable[[SimulationPulse], None]":
    """Show the predictions, then the trainings; a long one gets a line of its own as soon as its time is known."""
    announced = ("", 0)

    def show_pulse(pulse: "SimulationPulse") -> None:
        nonlocal announced
        which = (pulse.sync, pulse.number)
        begins = (pulse.left_s or 0.0) > LONG_S and which != announced
        announced = which if begins else announced
        phase = "training" if pulse.trains else "simulating"
        tell(phase, pulse.done, pulse.total, _now(pulse), line=begins, one_s=pulse.left_s if pulse.trains else None)

    return show_pulse


def _now(pulse: "SimulationPulse") -> str:
    accuracy = "" if pulse.accuracy is None else f", accuracy {percent(100 * pulse.accuracy, 2)}"
    return f"{'trained ' if pulse.trains else ''}{pulse.sync} on {pulse.number:,}{accuracy}"
