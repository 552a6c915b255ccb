"""Ways to train n workers in one process: one worker on the global batches, or n replicas side by side."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

import torch
from torch import Tensor, nn

from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.data.order import cut
from manyhands.machine import facts
from manyhands.replica import Replica
from manyhands.replica.fused import FusedReplica
from manyhands.replica.random import KeyedDropout
from manyhands.replica.stacked import most_in_a_stack
from manyhands.replica.update import is_plain
from manyhands.sync import Sync
from manyhands.tasks import Task
from manyhands.tasks.setup import can_stack, make_replica, make_stack
from manyhands.training.caveats import causes_of
from manyhands.training.plan import Plan
from manyhands.training.step import compute_gradients
from manyhands.virtual.delayed import DelayedGroup
from manyhands.virtual.groups import ReplicaGroup, StackGroup
from manyhands.virtual.rows import Feed

MOST_STEPS = 32
"""Steps per call of `run`, which bounds the time between two progress reports."""
MOST_DELAYED = 32
"""Replicas of a `DelayedGroup` on a CPU."""
SMALL_ROWS = 64
"""Rows up to which products with Linear layers are faster on one core than on several."""


class Course(ABC):
    """A computation of the weights that n workers would have."""

    plan: Plan
    every: int
    """Steps from one exchange to the next, counted from the first step."""

    @abstractmethod
    def run(self, steps: range) -> list[float]:
        """Take steps of one epoch, and the exchange if one is due after the last; return the losses."""

    @abstractmethod
    def settled(self) -> nn.Module:
        """Return the network with the weights that the run would have if it ended now."""

    def close(self) -> None:  # noqa: B027
        """End the threads that this course has started."""

    def parts(self, first: int, last: int) -> Iterator[range]:
        """Cut the steps from `first` to `last` into ranges for `run`."""
        while first < last:
            ends = (first // size * size + size for size in (self.plan.steps_per_epoch, self.every))
            stop = min(last, first + MOST_STEPS, *ends)
            yield range(first, stop)
            first = stop


@final
class OneWorker(Course):
    """One worker on the global batches, which gives the weights of n workers with an exact strategy."""

    def __init__(self, task: Task, config: RunConfig, data: Dataset, device: torch.device) -> None:
        self.replica = make_replica(task, config, data, device)
        self.plan, self.every = Plan(config, data.train, 0, 1), MOST_STEPS
        self._epoch, self._batches = -1, self.plan.batches(0)

    def run(self, steps: range) -> list[float]:
        epoch, first = divmod(steps.start, self.plan.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self.plan.batches(epoch)
        losses = []
        for batch, step in zip(self._batches[first:], steps, strict=False):
            loss = compute_gradients(self.replica, self.plan, batch, step)
            losses.append(self.replica.criterion.reported(loss, self.plan.rows_of(step)))
            if self.replica.accepts():
                self.replica.apply()
        return torch.stack(losses).tolist()

    def settled(self) -> nn.Module:
        self.replica.refresh()
        return self.replica.module


@final
class SideBySide(Course):
    """All n replicas, in groups with a thread each, which step alone until they exchange weights."""

    def __init__(
        self, replica: Replica, groups: Sequence[ReplicaGroup], plan: Plan, every: int, *, ring: bool, num_threads: int
    ) -> None:
        """`replica` is for the mean of all; on a `ring` each averages with its two neighbours only."""
        self._replica, self._groups, self._ring = replica, groups, ring
        self.plan, self.every = plan, every
        self._pool = ThreadPoolExecutor(num_threads)
        self._buffers: list[Tensor] = []
        """One per group, for the weights after averaging on a ring."""

    def run(self, steps: range) -> list[float]:
        of_groups = list(self._pool.map(lambda group: group.run(steps), self._groups))
        losses: list[float] = torch.stack(of_groups).double().sum(0).tolist()
        if steps.stop % self.every == 0 and self._ring:
            self._mix_()
        elif steps.stop % self.every == 0:
            mean = self._mean()
            for group in self._groups:
                group.set_(mean)
        return losses

    def settled(self) -> nn.Module:
        self._replica.params.copy_(self._mean())
        return self._replica.module

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _mean(self) -> Tensor:
        totals = list(self._pool.map(lambda group: group.total(), self._groups))
        return torch.stack(totals).sum(0).div_(self.plan.size)

    def _mix_(self) -> None:
        if self.plan.size == 1:
            return
        parts = list(self._pool.map(lambda group: group.rows(), self._groups))
        rows = [row for part in parts for row in part]
        if not self._buffers:
            self._buffers = [torch.empty_like(part) for part in parts]
        mixed = list(self._pool.map(lambda group, out: _ring_means(group, rows, out), self._groups, self._buffers))
        self._buffers = [group.exchange(part) for group, part in zip(self._groups, mixed, strict=True)]


@torch.no_grad()
def _ring_means(group: ReplicaGroup, rows: Sequence[Tensor], out: Tensor) -> Tensor:
    """Fill `out` with the means of each row of `group` and its neighbours, row by row, which stays in the cache."""
    size = len(rows)
    for mean, i in zip(out, range(group.workers.start, group.workers.stop), strict=True):
        torch.add(rows[i], rows[i - 1], out=mean)
        if size > 2:
            mean.add_(rows[(i + 1) % size])
        mean.div_(min(3, size))
    return out


def course_of(strategy: Sync, task: Task, config: RunConfig, data: Dataset, device: torch.device) -> Course | None:
    """Return the course of a run, or None where the n workers must take turns in the strategy's own code."""
    replica = make_replica(task, config, data, device)
    # The answer of one worker is that of n unless it depends on which rows of a batch are computed together.
    if strategy.exact and (config.exact or not causes_of(task, replica, data)):
        return OneWorker(task, config, data, device)
    plan = Plan(config, data.train, 0, config.size, strategy.own_split)
    if strategy.pattern not in ("mean", "ring") or not can_stack(data):
        return None
    every = {"step": 1, "period": strategy.period, "epoch": plan.steps_per_epoch, "end": plan.steps}[strategy.exchanges]
    replica, feed = make_replica(task, config, data, device), Feed(plan, getattr(torch, config.dtype))
    num_threads = 1 if device.type == "cuda" else min(facts.cores(), config.size)
    groups = _groups(task, config, data, replica, feed, every, num_threads)
    if groups is None:
        return None
    return SideBySide(replica, groups, plan, every, ring=strategy.pattern == "ring", num_threads=num_threads)


def _groups(
    task: Task, config: RunConfig, data: Dataset, replica: Replica, feed: Feed, every: int, num_threads: int
) -> list[ReplicaGroup] | None:
    """Divide the replicas into groups; None where they cannot be batched."""
    if any(isinstance(layer, KeyedDropout) for layer in replica.module.modules()):
        return None  # random layers draw by a row's place in the global batch, which a stack does not know
    most = most_in_a_stack(replica)
    update = replica.update
    plain = is_plain(update.optimizer) and update.rates is None and not update.clip
    delayed = replica if isinstance(replica, FusedReplica) and plain else None
    if delayed is not None and not replica.params.is_cuda:
        most = MOST_DELAYED
    num_groups = min(config.size, num_threads * -(-config.size // (num_threads * most)))  # equally many per thread
    groups: list[ReplicaGroup] = []
    for i in range(num_groups):
        workers = slice(*cut(config.size, num_groups, i))
        if delayed is not None:
            groups.append(DelayedGroup(workers, delayed, str(task.loss), every, feed))
            continue
        models = make_stack(task, config, data, replica.params.device, [data] * (workers.stop - workers.start))
        if models is None:
            return None
        groups.append(StackGroup(workers, models, feed))
    return groups


def for_small(config: RunConfig, replica: Replica, rows: int) -> RunConfig:
    """Return the config with one BLAS thread where batches are small, unless the user chose a number of threads."""
    small = isinstance(replica, FusedReplica) and rows <= SMALL_ROWS and not config.blas_threads
    return config.model_copy(update={"blas_threads": 1}) if small else config
