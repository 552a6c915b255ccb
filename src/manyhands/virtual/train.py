"""Train as n nodes would, on one machine: the weights are those of n workers, the time is that of a simulated machine.

Exact strategies give the answer of one worker on the same global batches, so one worker is what is trained. Strategies
that keep the replicas apart are trained with all n of them side by side, batched where the network allows it. Whatever
else there is, asynchronous servers above all, runs its own code on virtual workers that take turns.
"""

import json
import math
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from torch import Tensor

from manyhands import tasks
from manyhands.comm.sim import Instant, Machine
from manyhands.config import RunConfig
from manyhands.errors import Diverged, check
from manyhands.launch.base import Observer
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.record import RankRecord, RunDir, open_run
from manyhands.record.store import write_record
from manyhands.record.texts import num_bytes
from manyhands.record.virtual import Method, VirtualPoint, VirtualRecord
from manyhands.request import resolve
from manyhands.run import Ready, ignore, preflight
from manyhands.sync.base import make as make_sync
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.tasks.setup import device_of, loss_of
from manyhands.training.checkpoint import weights_sha256, write_weights
from manyhands.training.plan import Plan
from manyhands.virtual.clock import scene_of, step_ends
from manyhands.virtual.courses import Course, OneWorker, course_of, for_small
from manyhands.virtual.events import Scene
from manyhands.virtual.ranks import take_turns
from manyhands.virtual.scores import Evaluation, Scores

RECORD = "virtual.json"


class Prepared(NamedTuple):
    """A run that was found to be good."""

    config: RunConfig
    task: Task
    ready: Ready


@dataclass(frozen=True)
class VirtualResult:
    """What came out, whichever way it was computed."""

    method: Method
    losses: list[float]
    """Of each step."""
    scores: dict[int, Evaluation]
    """By the steps made."""
    weights_sha256: str
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Where they are not written yet."""
    staleness: dict[str, float] = field(default_factory=dict)
    step_ends: list[float] = field(default_factory=list)
    """When the last worker had made each step, where the order of events is part of the answer."""


Known = dict[RunConfig, VirtualResult]
"""What one worker has given, which is the answer of every exact strategy and any number of workers."""


def train_virtually(
    task: str | Task,
    nodes: int,
    *,
    sync: str = "allreduce",
    machine: Machine,
    scene: Scene | None = None,
    out: str | Path | None = None,
    observe: Observer = ignore,
    known: Known | None = None,
    **options: Any,
) -> VirtualRecord:
    """Train a task on so many virtual nodes of one worker each, with the options of `manyhands train`.

    `scene` is what a simulation knows of the network; without it, nothing overlaps with the backward pass. The folder
    `out`, if given, gets the record, the weights, and what an asynchronous strategy's servers did when. Calls that
    share what is `known` do not train one worker again for an answer that is the same.
    """
    begun = time.perf_counter()
    config, own, ready = prepare(task, nodes, sync=sync, **options)
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDir(Path(out or scratch))
        open_run(run, config)
        plan = Plan(config, ready.data.train, 0, config.size)
        scores = Scores(plan, ready.data.to(device_of(config, 0)).test, loss_of(own), observe)
        trained = _by_course(config, own, ready, scores, {} if known is None else known)
        trained = trained or _by_turns(config, own, ready, machine, run, scores)
        if trained.weights:
            write_weights(run.model, trained.weights)
        ends = trained.step_ends or step_ends(scene or scene_of(plan, ready.replica), machine, plan.steps, config.seed)
        record = _record(plan, ready, trained, ends, time.perf_counter() - begun)
        write_record(run.path / RECORD, record)
    return record


def prepare(task: str | Task, nodes: int, *, sync: str, **options: Any) -> Prepared:
    """Find every bad request before anything is trained."""
    check_not_importing()
    check(nodes >= 1, f"nodes must be at least 1, got {nodes}")
    own = tasks.load(task) if isinstance(task, str) else task
    name = task if isinstance(task, str) else name_of(task)
    config = resolve(name, {**options, "sync": sync, "engine": "sim", "workers": nodes}, own)
    ready = preflight(config, own)
    _check_memory(config, ready)
    return Prepared(config, own, ready)


def _check_memory(config: RunConfig, ready: Ready) -> None:
    """Refuse more replicas than there can be, each with weights and gradients."""
    if make_sync(config.sync).exact:
        return
    each, free = 2 * ready.replica.params.nbytes, _free_bytes()
    check(
        config.size * each <= free,
        f"{config.size:,} replicas of {num_bytes(each)} each do not fit into the {num_bytes(free)} of memory that are "
        f"free; name fewer nodes",
    )


def _free_bytes() -> int:
    return int(psutil.virtual_memory().available)


def _by_course(config: RunConfig, task: Task, ready: Ready, scores: Scores, known: Known) -> VirtualResult | None:
    """Train in this process by something shorter than n workers in turn, if there is something."""
    device, like_one = device_of(config, 0), config.model_copy(update={"workers": 1, "sync": ""})
    course = course_of(make_sync(config.sync), task, config, ready.data.to(device), device)
    if course is None:
        return None
    with closing(course):
        if not isinstance(course, OneWorker):
            # A thread for each core has a group of replicas.
            return _follow(course, config.model_copy(update={"blas_threads": 1}), scores, "stacked")
        if like_one not in known:
            known[like_one] = _follow(
                course, for_small(config, ready.replica, course.plan.batch_size), scores, "one-worker"
            )
        return known[like_one]


def _follow(course: Course, config: RunConfig, scores: Scores, method: Method) -> VirtualResult:
    """Go the whole course, and evaluate on the way."""
    losses: list[float] = []
    with process_settings(config, 1, facts.cores()):
        for stop in scores.steps:
            for steps in course.parts(len(losses), stop):
                losses += course.run(steps)
                _check_finite(losses[steps.start :], steps.start)
                scores.tell(steps.stop, losses[-1])
            scores.take(course.settled(), stop)
            scores.tell(stop, losses[-1])
        module = course.settled()
    weights = {name: t.detach().cpu().contiguous().clone() for name, t in module.state_dict().items()}
    return VirtualResult(method, losses, scores.found, weights_sha256(module), weights)


def _by_turns(
    config: RunConfig, task: Task, ready: Ready, machine: Machine, run: RunDir, scores: Scores
) -> VirtualResult:
    """Train with the strategy's own code on n virtual workers."""
    lockstep = make_sync(config.sync).lockstep
    small = for_small(config, ready.replica, -(-scores.plan.batch_size // config.size))
    record, ends = take_turns(small, task, ready, Instant() if lockstep else machine, run, scores)
    losses = [json.loads(line)["loss"] for line in run.steps.read_text().splitlines()]
    stale = _staleness(record.ranks)
    ends = [] if lockstep else ends
    return VirtualResult("one-by-one", losses, scores.found, record.weights_sha256, staleness=stale, step_ends=ends)


def _staleness(ranks: list[RankRecord]) -> dict[str, float]:
    """Join what the servers tell; each applied as many gradients as the others."""
    notes = [rank.notes for rank in ranks if "staleness_mean" in rank.notes]
    if not notes:
        return {}
    mean = sum(note["staleness_mean"] for note in notes) / len(notes)
    return {"mean": mean, "max": max(note["staleness_max"] for note in notes)}


def _record(plan: Plan, ready: Ready, trained: VirtualResult, ends: list[float], wall_s: float) -> VirtualRecord:
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
        test_loss=points[-1].test_loss,
        test_accuracy=points[-1].accuracy,
        time_s=ends[-1],
        staleness=trained.staleness,
        warnings=list(ready.warnings),
        wall_s=wall_s,
        weights_sha256=trained.weights_sha256,
        hardware=facts.hardware(),
        versions=facts.versions(),
        config=config,
    )


def _points(plan: Plan, trained: VirtualResult, ends: list[float]) -> list[VirtualPoint]:
    points, before = [], 0
    for step, score in sorted(trained.scores.items()):
        rows = [plan.rows_of(i) for i in range(before, step)]
        loss = sum(r * trained.losses[before + i] for i, r in enumerate(rows)) / sum(rows)
        points.append(
            VirtualPoint(
                step=step,
                epoch=step / plan.steps_per_epoch,
                time_s=ends[step - 1],
                loss=loss,
                test_loss=score.loss,
                accuracy=score.accuracy,
            )
        )
        before = step
    return points


def _check_finite(losses: list[float], first: int) -> None:
    for i, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise Diverged(f"the loss became {loss} at step {first + i + 1}; try a smaller --lr, or look at the data")
