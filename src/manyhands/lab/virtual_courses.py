"""The courses that training on n nodes may take in one process: one worker for all, or n replicas side by side."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

import torch
from torch import nn

from manyhands import facts
from manyhands.config import RunConfig
from manyhands.crossval.stacked import most_in_a_stack
from manyhands.data import Dataset
from manyhands.data.order import cut
from manyhands.lab.virtual_delayed import DelayedGroup
from manyhands.lab.virtual_groups import Group, Replicas, StackGroup
from manyhands.lab.virtual_rows import Feed
from manyhands.plan import Plan
from manyhands.promise import causes_of
from manyhands.record import Pulse
from manyhands.replica import Replica
from manyhands.replica.base import sum_of_lanes
from manyhands.replica.fused import FusedReplica
from manyhands.replica.random import KeyedDropout
from manyhands.replica.stacked import Stack, stack
from manyhands.replica.update import is_plain
from manyhands.sync import Sync
from manyhands.sync.average_epoch import AverageEpoch
from manyhands.sync.average_once import AverageOnce
from manyhands.sync.gossip import Gossip
from manyhands.sync.local_sgd import LocalSGD
from manyhands.tasks import Task
from manyhands.tasks.seeding import seeded
from manyhands.tasks.setup import make_replica

MOST_STEPS = 32
"""Steps to make at once, so that somebody who watches sees something."""
MOST_DELAYED = 32
"""Replicas whose blocks of rows go through a core together."""


SMALL_ROWS = 64
"""Rows whose products with Linear layers are not worth sharing out over the cores."""


class Course(ABC):
    """A way to the weights that n workers would have."""

    plan: Plan
    every: int
    """Steps from one exchange to the next, counted from the beginning."""

    @abstractmethod
    def run(self, steps: range) -> list[float]:
        """Make steps of one epoch, and the exchange where one is due after the last; return the losses."""

    @abstractmethod
    def settled(self) -> nn.Module:
        """Return the network with the weights that the run would end with now."""

    def close(self) -> None:  # noqa: B027
        """Let threads go."""

    def parts(self, first: int, last: int) -> Iterator[range]:
        """Cut these steps of the run into some that are made at once."""
        while first < last:
            ends = (first // size * size + size for size in (self.plan.steps_per_epoch, self.every))
            stop = min(last, first + MOST_STEPS, *ends)
            yield range(first, stop)
            first = stop


@final
class OneWorker(Course):
    """One worker on the global batches: its answer is that of n workers with an exact strategy."""

    def __init__(self, task: Task, config: RunConfig, data: Dataset, device: torch.device) -> None:
        self.replica = make_replica(task, config, data, device)
        self.plan, self.every = Plan(config, data.train, 0, 1), MOST_STEPS
        self._epoch, self._batches = -1, self.plan.batches(0)

    def run(self, steps: range) -> list[float]:
        """Make step after step."""
        epoch, first = divmod(steps.start, self.plan.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self.plan.batches(epoch)
        losses = []
        for batch, step in zip(self._batches[first:], steps, strict=False):
            self.replica.update.scale = self.plan.lr_scale(step)
            losses.append(sum_of_lanes(self.replica, self.plan.lanes(batch, step)))
            self.replica.apply()
        return torch.stack(losses).tolist()

    def settled(self) -> nn.Module:
        """Return its network."""
        self.replica.refresh()
        return self.replica.module


@final
class SideBySide(Course):
    """All n replicas, each stepping alone until they exchange weights."""

    def __init__(self, replica: Replica, replicas: Replicas, plan: Plan, every: int, *, mixes: bool) -> None:
        """Take a replica for the mean of the others."""
        self._mean, self._replicas, self._mixes = replica, replicas, mixes
        self.plan, self.every = plan, every

    def run(self, steps: range) -> list[float]:
        """Let all step, then average or mix."""
        losses = self._replicas.run(steps)
        if steps.stop % self.every == 0:
            self._replicas.mix_() if self._mixes else self._replicas.average_()
        return losses

    def settled(self) -> nn.Module:
        """Average, and leave the replicas as they are."""
        self._mean.params.copy_(self._replicas.mean())
        return self._mean.module

    def close(self) -> None:
        """Let the pool go."""
        self._replicas.close()


def course_of(strategy: Sync, task: Task, config: RunConfig, data: Dataset, device: torch.device) -> Course | None:
    """Choose the course for a run, or None where the n workers must take their turns with the strategy's own code."""
    if strategy.exact and (config.exact or not _rows_meet(task, config, data, device)):
        return OneWorker(task, config, data, device)
    plan = Plan(config, data.train, 0, config.size, strategy.own_split)
    every = _every(strategy, plan)
    if every is None:
        return None
    replica, feed = make_replica(task, config, data, device), Feed(plan, getattr(torch, config.dtype))
    num_threads = 1 if device.type == "cuda" else min(facts.cores(), config.size)
    groups = _groups(task, config, data, replica, feed, every, num_threads)
    if groups is None:
        return None
    replicas = Replicas(groups, num_threads)
    return SideBySide(replica, replicas, plan, every, mixes=isinstance(strategy, Gossip))


def _rows_meet(task: Task, config: RunConfig, data: Dataset, device: torch.device) -> bool:
    """Tell whether the answer depends on which rows of a batch are computed together."""
    return bool(causes_of(task, make_replica(task, config, data, device), data))


def _every(strategy: Sync, plan: Plan) -> int | None:
    """Return the steps between two exchanges, for the strategies of which that is all there is to know."""
    match strategy:
        case LocalSGD(period=period):
            return period
        case AverageEpoch():
            return plan.steps_per_epoch
        case AverageOnce():
            return plan.steps
        case Gossip():
            return 1
    return None


def _groups(
    task: Task, config: RunConfig, data: Dataset, replica: Replica, feed: Feed, every: int, num_threads: int
) -> list[Group] | None:
    """Share the replicas out to groups; None where they cannot be batched."""
    if any(isinstance(layer, KeyedDropout) for layer in replica.module.modules()):
        return None  # random layers draw by the row's place in the global batch, which a stack does not know
    most = most_in_a_stack(replica)
    delayed = replica if isinstance(replica, FusedReplica) and is_plain(replica.update.optimizer) else None
    if delayed is not None and not replica.params.is_cuda:
        most = MOST_DELAYED
    groups: list[Group] = []
    for workers in _cut(config.size, num_threads, most):
        if delayed is not None:
            groups.append(DelayedGroup(workers, delayed, str(task.loss), every, feed))
            continue
        models = _stack(workers.stop - workers.start, task, config, data, replica.params.device)
        if models is None:
            return None
        groups.append(StackGroup(workers, models, feed))
    return groups


def _cut(size: int, threads: int, most: int) -> list[slice]:
    """Cut the replicas into groups of nearly one size, as many for each thread."""
    rounds = -(-size // (threads * most))
    parts = min(size, threads * rounds)
    return [slice(*cut(size, parts, i)) for i in range(parts)]


def _stack(size: int, task: Task, config: RunConfig, data: Dataset, device: torch.device) -> Stack | None:
    """Make so many models with the weights that the seed decides."""
    dtype, modules = getattr(torch, config.dtype), []
    for _ in range(size):
        with seeded(config.seed):
            modules.append(task.make_model(data))
    sample, _ = data.train.batch(slice(0, min(2, len(data.train))), dtype)
    return stack(
        modules,
        sample.to(device),
        task.loss,
        lambda params: task.make_optimizer(params, config.lr),
        device=device,
        dtype=dtype,
        fuse=config.fuse,
    )


def for_small(config: RunConfig, replica: Replica, rows: int) -> RunConfig:
    """Keep products of few rows to one thread, unless the user wants otherwise."""
    small = isinstance(replica, FusedReplica) and rows <= SMALL_ROWS and not config.blas_threads
    return config.model_copy(update={"blas_threads": 1}) if small else config


def pulse_of(plan: Plan, step: int, losses: list[float], accuracy: float | None, seconds: float) -> Pulse:
    """Tell how a course is doing, in real seconds."""
    rate = plan.samples_until(step) / max(seconds, 1e-9)
    left = plan.samples_until(plan.steps) - plan.samples_until(step)
    return Pulse(
        step=step,
        steps=plan.steps,
        epoch=(step - 1) // plan.steps_per_epoch + 1,
        epochs=plan.epochs,
        loss=sum(losses) / len(losses),
        accuracy=accuracy,
        samples_per_s=rate,
        eta_s=left / max(rate, 1e-9),
        compute_s=seconds,
        comm_s=0.0,
        wait_s=0.0,
    )
