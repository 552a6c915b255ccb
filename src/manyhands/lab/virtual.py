"""Train as n nodes would, on one machine: the weights are those of n workers, the time is that of a simulated machine.

Exact strategies give the answer of one worker on the same global batches, so one worker is what is trained. Strategies
that keep the replicas apart are trained with all n of them side by side, batched where the network allows it. Whatever
else there is, asynchronous servers above all, runs its own code on virtual workers that take turns.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from manyhands import facts, tasks
from manyhands.checkpoint import weights_sha256
from manyhands.comm.self_ import SelfComm
from manyhands.comm.sim import Instant, Machine
from manyhands.config import RunConfig
from manyhands.errors import Diverged, check
from manyhands.evaluate import evaluate
from manyhands.lab.sim_events import Scene
from manyhands.lab.virtual_clock import scene_of, step_ends
from manyhands.lab.virtual_courses import Course, OneWorker, course_of, for_small, pulse_of
from manyhands.lab.virtual_ranks import take_turns
from manyhands.launch.base import Observer
from manyhands.launch.cores import process_settings
from manyhands.plan import Plan
from manyhands.record import RankRecord, RunDir, open_run, write_atomically
from manyhands.record.virtual import Method, VirtualPoint, VirtualRecord
from manyhands.request import resolve
from manyhands.run import Ready, ignore, preflight
from manyhands.sync.base import make as make_sync
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.tasks.setup import device_of, loss_of

INTERVAL_S = 0.25
"""Real time between two pulses."""
RECORD = "virtual.json"


@dataclass(frozen=True)
class Trained:
    """What came out, whichever way it was computed."""

    method: Method
    losses: list[float]
    """Of each step."""
    accuracies: dict[int, float]
    """Of each evaluation, by the steps made."""
    test_loss: float
    weights_sha256: str
    staleness: dict[str, float] = field(default_factory=dict)
    step_ends: list[float] = field(default_factory=list)
    """When the last worker had made each step, where the order of events is part of the answer."""


def train_virtually(
    task: str | Task,
    nodes: int,
    *,
    sync: str = "allreduce",
    machine: Machine,
    scene: Scene | None = None,
    out: str | Path | None = None,
    observe: Observer = ignore,
    **options: Any,
) -> VirtualRecord:
    """Train a task on so many virtual nodes of one worker each, with the options of `manyhands train`.

    `scene` is what a simulation knows of the network; without it, nothing overlaps with the backward pass. The folder
    `out`, if given, gets the record, the weights, and what an asynchronous strategy's servers did when.
    """
    check_not_importing()
    check(nodes >= 1, f"nodes must be at least 1, got {nodes}")
    own = tasks.load(task) if isinstance(task, str) else task
    name = task if isinstance(task, str) else name_of(task)
    config = resolve(name, {**options, "sync": sync, "engine": "sim", "workers": nodes}, own)
    begun = time.perf_counter()
    ready = preflight(config, own)
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDir(Path(out or scratch))
        open_run(run, config)
        trained = _by_course(config, own, ready, run, observe) or _by_turns(config, own, ready, machine, run, observe)
        plan = Plan(config, ready.data.train, 0, config.size)
        ends = trained.step_ends or step_ends(scene or scene_of(plan, ready.replica), machine, plan.steps, config.seed)
        record = _record(plan, ready, trained, ends, time.perf_counter() - begun)
        write_atomically(run.path / RECORD, record.model_dump_json(indent=2) + "\n")
    return record


def _by_course(config: RunConfig, task: Task, ready: Ready, run: RunDir, observe: Observer) -> Trained | None:
    """Train in this process by something shorter than n workers in turn, if there is something."""
    device = device_of(config, 0)
    data = ready.data.to(device)
    course = course_of(make_sync(config.sync), task, config, data, device)
    if course is None:
        return None
    alone = isinstance(course, OneWorker)
    threads = {} if alone else {"blas_threads": 1}  # a thread for each core has a group of replicas
    with closing(course), process_settings(config.model_copy(update=threads), 1, facts.cores()):

        def test() -> tuple[float, float]:
            return evaluate(course.settled(), data.test, loss_of(task), SelfComm(), config.top)

        losses, accuracies, test_loss = _follow(course, test, observe)
        module = course.settled()
    save_file({name: t.detach().cpu().contiguous().clone() for name, t in module.state_dict().items()}, run.model)
    method: Method = "one-worker" if alone else "stacked"
    return Trained(method, losses, accuracies, test_loss, weights_sha256(module))


def _by_turns(config: RunConfig, task: Task, ready: Ready, machine: Machine, run: RunDir, observe: Observer) -> Trained:
    """Train with the strategy's own code on n virtual workers."""
    lockstep = make_sync(config.sync).lockstep
    rows = -(-Plan(config, ready.data.train, 0, config.size).batch_size // config.size)
    turns = take_turns(
        for_small(config, ready.replica, rows), task, ready, Instant() if lockstep else machine, run, observe
    )
    losses = [json.loads(line)["loss"] for line in run.steps.read_text().splitlines()]
    record, ends = turns.record, [] if lockstep else turns.step_ends
    stale = _staleness(record.ranks)
    return Trained(
        "one-by-one", losses, turns.accuracies, record.test_loss, record.weights_sha256, staleness=stale, step_ends=ends
    )


def _staleness(ranks: list[RankRecord]) -> dict[str, float]:
    """Join what the servers tell; each applied as many gradients as the others."""
    notes = [rank.notes for rank in ranks if "staleness_mean" in rank.notes]
    if not notes:
        return {}
    mean = sum(note["staleness_mean"] for note in notes) / len(notes)
    return {"mean": mean, "max": max(note["staleness_max"] for note in notes)}


def _follow(
    course: Course, test: Callable[[], tuple[float, float]], observe: Observer
) -> tuple[list[float], dict[int, float], float]:
    """Go the whole course; return the losses, the accuracies, and the last test's loss."""
    plan, losses, accuracies, test_loss = course.plan, list[float](), dict[int, float](), math.nan
    begun = shown = time.perf_counter()
    for steps in course.parts(0, plan.steps):
        losses += course.run(steps)
        _check_finite(losses[steps.start :], steps.start)
        if plan.wants_evaluation(steps.stop) or steps.stop == plan.steps:
            test_loss, accuracies[steps.stop] = test()
            _check_test(test_loss, steps.stop)
        now = time.perf_counter()
        if now - shown > INTERVAL_S or steps.stop == plan.steps:
            shown = now
            accuracy = next(reversed(accuracies.values()), None)
            observe(pulse_of(plan, steps.stop, losses[steps.start :], accuracy, now - begun))
    return losses, accuracies, test_loss


def _record(plan: Plan, ready: Ready, trained: Trained, ends: list[float], wall_s: float) -> VirtualRecord:
    config, points = plan.config, _points(plan, trained, ends)
    return VirtualRecord(
        task=config.task,
        sync=config.sync,
        nodes=config.workers,
        method=trained.method,
        batch_size=plan.batch_size,
        steps=plan.steps,
        epochs=plan.steps / plan.steps_per_epoch,
        seed=config.seed,
        parameters=sum(p.numel() for p in ready.replica.module.parameters()),
        samples=plan.samples_until(plan.steps),
        step_loss=trained.losses,
        step_end_s=ends,
        points=points,
        test_loss=trained.test_loss,
        test_accuracy=points[-1].accuracy,
        time_s=ends[-1],
        staleness=trained.staleness,
        wall_s=wall_s,
        weights_sha256=trained.weights_sha256,
        hardware=facts.hardware(),
        versions=facts.versions(),
        config=config,
    )


def _points(plan: Plan, trained: Trained, ends: list[float]) -> list[VirtualPoint]:
    points, before = [], 0
    for step, accuracy in sorted(trained.accuracies.items()):
        rows = [plan.rows_of(i) for i in range(before, step)]
        loss = sum(r * trained.losses[before + i] for i, r in enumerate(rows)) / sum(rows)
        epoch, time_s = step / plan.steps_per_epoch, ends[step - 1]
        points.append(VirtualPoint(step=step, epoch=epoch, time_s=time_s, loss=loss, accuracy=accuracy))
        before = step
    return points


def _check_finite(losses: list[float], first: int) -> None:
    for i, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise Diverged(f"the loss became {loss} at step {first + i + 1}; try a smaller --lr, or look at the data")


def _check_test(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise Diverged(f"the test loss became {loss} after step {step}; try a smaller --lr")
