"""Train as n nodes would, on one machine: the weights of n workers, in the time of a simulated machine.

Exact strategies give the weights of one worker on the same global batches, so one worker is trained. Strategies that
keep replicas apart are trained with all n replicas side by side, batched where the network allows it. All others,
asynchronous servers above all, run their own code on virtual workers that take turns.
"""

import math
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
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
from manyhands.record.run import RankRecord, RunDir, open_run, read_steps
from manyhands.record.store import write_record
from manyhands.record.texts import num_bytes
from manyhands.record.virtual import Method, VirtualPoint, VirtualRecord
from manyhands.replica.meta import outline_of
from manyhands.request import resolve
from manyhands.run import Ready, ignore, preflight
from manyhands.sync import Sync
from manyhands.sync.base import make as make_sync
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.tasks.setup import device_of
from manyhands.training.caveats import check_unwatched
from manyhands.training.checkpoint import weights_sha256, write_weights
from manyhands.training.evaluate import scoring_of
from manyhands.training.plan import AT_END, Plan
from manyhands.virtual.codec import measure_codec
from manyhands.virtual.courses import Course, OneWorker, course_of, for_small
from manyhands.virtual.events import Scene, step_ends
from manyhands.virtual.ranks import take_turns
from manyhands.virtual.scores import Evaluation, Scores


class Prepared(NamedTuple):
    """A run that has passed all checks."""

    config: RunConfig
    task: Task
    strategy: Sync
    ready: Ready


@dataclass(frozen=True)
class VirtualResult:
    """The result of a training, by whichever method."""

    method: Method
    losses: list[float]
    """Loss of each step."""
    evaluations: dict[int, Evaluation]
    """By the number of steps taken."""
    weights_sha256: str
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Empty where they are written already."""
    staleness: dict[str, float] = field(default_factory=dict)
    step_ends: list[float] = field(default_factory=list)
    """When the last worker ended each step, where the order of events decides the weights."""


Cache = dict[RunConfig, VirtualResult]
"""Results of one worker, which hold for every exact strategy and any number of workers."""


def train_virtually(
    task: str | Task,
    nodes: int,
    *,
    sync: str = "allreduce",
    machine: Machine,
    scene: Scene | None = None,
    out: str | Path | None = None,
    observe: Observer = ignore,
    cache: Cache | None = None,
    **options: Any,
) -> VirtualRecord:
    """Train a task on `nodes` virtual nodes of one worker each, with the options of `manyhands train`.

    scene: The network as a simulation knows it; without it, no exchange overlaps with the backward pass.
    out: Folder for the record, the weights, and the events of an asynchronous strategy's servers.
    cache: Results of one worker, shared between calls so that equal trainings are done once.
    """
    begun = time.perf_counter()
    prepared = prepare(task, nodes, sync=sync, **options)
    config, task, strategy, ready = prepared
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDir(Path(out or scratch))
        open_run(run, config)
        plan = Plan(config, ready.data.train, 0, config.size)
        data = ready.data.to(device_of(config, 0))
        scores = Scores(plan, data.test, partial(scoring_of, task, config, data), observe)
        result = _by_course(prepared, scores, {} if cache is None else cache)
        result = result or _by_turns(prepared, machine, run, scores)
        if result.weights:
            write_weights(run.model, result.weights)
        scene = scene or _scene_of(plan, strategy, ready)
        ends = result.step_ends or step_ends(scene, machine, plan.steps, config.seed)
        record = _record(plan, ready, result, ends, time.perf_counter() - begun)
        write_record(run.path / "virtual.json", record)
    return record


def prepare(task: str | Task, nodes: int, *, sync: str, **options: Any) -> Prepared:
    """Check a run before anything is trained."""
    check_not_importing()
    check(nodes >= 1, f"nodes must be at least 1, got {nodes}")
    loaded = tasks.load(task) if isinstance(task, str) else task
    name = task if isinstance(task, str) else name_of(task)
    config = resolve(name, {**options, **AT_END, "sync": sync, "engine": "sim", "workers": nodes}, loaded)
    check(config.ema == 0, f"virtual nodes keep no average of the weights, but the task has ema {config.ema:g}; use 0")
    prepared = Prepared(config, loaded, make_sync(config.sync), preflight(config, loaded))
    check_unwatched(prepared.ready.replica, "virtual nodes are tested without being told the figures")
    if not prepared.strategy.exact:
        replica_bytes = 2 * prepared.ready.replica.params.nbytes  # weights and gradients
        free = int(psutil.virtual_memory().available)
        check(
            config.size * replica_bytes <= free,
            f"{config.size:,} replicas of {num_bytes(replica_bytes)} each do not fit into the {num_bytes(free)} of "
            "memory that are free; name fewer nodes",
        )
    return prepared


def _scene_of(plan: Plan, strategy: Sync, ready: Ready) -> Scene:
    outline = outline_of(ready.replica)
    codec = None if strategy.codec is None else measure_codec(strategy.codec, outline)
    return Scene(strategy, plan.config.size, outline, plan.steps_per_epoch, codec)


def _by_course(prepared: Prepared, scores: Scores, cache: Cache) -> VirtualResult | None:
    """Train by a `Course`, or return None if there is none for this run."""
    config, task, strategy, ready = prepared
    device, key = device_of(config, 0), config.model_copy(update={"workers": 1, "sync": ""})
    course = course_of(strategy, task, config, ready.data.to(device), device)
    if course is None:
        return None
    with closing(course):
        if not isinstance(course, OneWorker):  # each core has a thread with a group of replicas
            return _follow(course, config.model_copy(update={"blas_threads": 1}), scores, "stacked")
        if key not in cache:
            small = for_small(config, ready.replica, course.plan.batch_size)
            cache[key] = _follow(course, small, scores, "one-worker")
        return cache[key]


def _follow(course: Course, config: RunConfig, scores: Scores, method: Method) -> VirtualResult:
    """Run the whole course with evaluations in between."""
    losses: list[float] = []
    with process_settings(config, 1, facts.cores()):
        for stop in scores.steps:
            for steps in course.parts(len(losses), stop):
                losses += course.run(steps)
                for i in steps:
                    if not math.isfinite(losses[i]):
                        advice = "try a smaller --lr, or look at the data"
                        raise Diverged(f"the loss became {losses[i]} at step {i + 1}; {advice}")
                scores.report(steps.stop, losses[-1])
            scores.take(course.settled(), stop)
            scores.report(stop, losses[-1])
        module = course.settled()
    weights = {name: t.detach().cpu().contiguous().clone() for name, t in module.state_dict().items()}
    return VirtualResult(method, losses, scores.evaluations, weights_sha256(module), weights)


def _by_turns(prepared: Prepared, machine: Machine, run: RunDir, scores: Scores) -> VirtualResult:
    """Train with the strategy's own code on n virtual workers."""
    config, task, strategy, ready = prepared
    small = for_small(config, ready.replica, -(-scores.plan.batch_size // config.size))
    record, ends = take_turns(small, task, ready, Instant() if strategy.lockstep else machine, run, scores)
    losses = [step["loss"] for step in read_steps(run)]
    return VirtualResult(
        "one-by-one",
        losses,
        scores.evaluations,
        record.weights_sha256,
        staleness=_staleness(record.ranks),
        step_ends=[] if strategy.lockstep else ends,
    )


def _staleness(ranks: list[RankRecord]) -> dict[str, float]:
    """Combine the servers' figures; every server has applied equally many gradients."""
    notes = [rank.notes for rank in ranks if "staleness_mean" in rank.notes]
    if not notes:
        return {}
    mean = sum(note["staleness_mean"] for note in notes) / len(notes)
    return {"mean": mean, "max": max(note["staleness_max"] for note in notes)}


def _record(plan: Plan, ready: Ready, result: VirtualResult, ends: list[float], wall_s: float) -> VirtualRecord:
    config, points = plan.config, _points(plan, result, ends)
    return VirtualRecord(
        task=config.task,
        sync=config.sync,
        nodes=config.workers,
        method=result.method,
        batch_size=plan.batch_size,
        steps=plan.steps,
        epochs=plan.steps / plan.steps_per_epoch,
        seed=config.seed,
        parameters=sum(p.numel() for p in ready.replica.module.parameters()),
        samples=plan.samples_until(plan.steps),
        step_loss=result.losses,
        step_end_s=ends,
        points=points,
        test_loss=points[-1].test_loss,
        test_accuracy=points[-1].accuracy,
        time_s=ends[-1],
        staleness=result.staleness,
        warnings=list(ready.warnings),
        wall_s=wall_s,
        weights_sha256=result.weights_sha256,
        hardware=facts.hardware(),
        versions=facts.versions(),
        config=config,
    )


def _points(plan: Plan, result: VirtualResult, ends: list[float]) -> list[VirtualPoint]:
    points, before = [], 0
    for step, score in sorted(result.evaluations.items()):
        rows = [plan.rows_of(i) for i in range(before, step)]
        loss = sum(r * result.losses[before + i] for i, r in enumerate(rows)) / sum(rows)
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
