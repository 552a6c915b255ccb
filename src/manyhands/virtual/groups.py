"""Groups of replicas that step by themselves between two exchanges, each group in a thread."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

import torch
from torch import Tensor

from manyhands.replica.random import mix_key
from manyhands.replica.stacked import Stack
from manyhands.virtual.rows import Feed


class ReplicaGroup(ABC):
    """Some of the n replicas; the weights of each are a flat row."""

    workers: slice
    """Which of the n they are."""

    @abstractmethod
    def run(self, steps: range) -> Tensor:
        """Let each replica make these steps alone; return each step's loss, summed over the replicas."""

    @abstractmethod
    def total(self) -> Tensor:
        """Return the sum of the replicas' weights."""

    @abstractmethod
    def rows(self) -> Tensor:
        """Return the weights of each replica."""

    @abstractmethod
    def set_(self, weights: Tensor) -> None:
        """Give all replicas these weights."""

    @abstractmethod
    def exchange(self, rows: Tensor) -> Tensor:
        """Give each replica its row; return room for as many, which the group uses no longer."""


@final
class StackGroup(ReplicaGroup):
    """Replicas that are trained as a stack, step by step, with any optimiser."""

    def __init__(self, workers: slice, models: Stack, feed: Feed) -> None:
        self.workers, self._models, self._feed = workers, models, feed

    def run(self, steps: range) -> Tensor:
        """Make step after step."""
        plan, losses = self._feed.plan, []
        share = self._feed.share(self.workers, steps)
        for i, step in enumerate(steps):
            x, y = self._feed.batch(share.rows[:, i])
            # A worker's gradient counts n times, so that the mean of such steps over the workers is the whole's.
            weights = share.weights[:, i] * plan.size
            found = self._models.forward_backward(x, y, weights, mix_key(plan.config.seed, step))
            self._models.update.scale = plan.schedule.scale(step)
            self._models.apply()
            losses.append(found.sum() / plan.size)
        return torch.stack(losses)

    @torch.no_grad()
    def total(self) -> Tensor:
        """Add up the rows."""
        return self._models.params.sum(0)

    def rows(self) -> Tensor:
        """Return the stack's own."""
        return self._models.params.detach()

    @torch.no_grad()
    def set_(self, weights: Tensor) -> None:
        """Copy; what optimisers remember stays."""
        self._models.params.copy_(weights)

    @torch.no_grad()
    def exchange(self, rows: Tensor) -> Tensor:
        """Copy, and give the same room back."""
        self._models.params.copy_(rows)
        return rows


@final
class Replicas:
    """All n replicas, and what a strategy does to them together."""

    def __init__(self, groups: Sequence[ReplicaGroup], num_threads: int) -> None:
        self._groups, self._pool = groups, ThreadPoolExecutor(num_threads)
        self._size = max(group.workers.stop for group in groups)
        self._room: list[Tensor] = []
        """For the weights that a mixing gives, a tensor for each group."""

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(cancel_futures=True)

    def run(self, steps: range) -> list[float]:
        """Let all make these steps alone; return the loss of each step over its global batch."""
        found = list(self._pool.map(lambda group: group.run(steps), self._groups))
        losses: list[float] = torch.stack(found).double().sum(0).tolist()
        return losses

    def mean(self) -> Tensor:
        """Return the mean of the weights."""
        totals = list(self._pool.map(lambda group: group.total(), self._groups))
        return torch.stack(totals).sum(0).div_(self._size)

    def average_(self) -> None:
        """Give all the mean."""
        mean = self.mean()
        for group in self._groups:
            group.set_(mean)

    def mix_(self) -> None:
        """Give each the mean of its own weights and those of both its neighbours on the ring."""
        if self._size == 1:
            return
        parts = list(self._pool.map(lambda group: group.rows(), self._groups))
        rows = [row for part in parts for row in part]
        if not self._room:
            self._room = [torch.empty_like(part) for part in parts]
        mixed = self._pool.map(
            lambda i: self._mixed(self._groups[i].workers, rows, self._room[i]), range(len(self._groups))
        )
        self._room = [group.exchange(own) for group, own in zip(self._groups, list(mixed), strict=True)]

    @torch.no_grad()
    def _mixed(self, workers: slice, rows: Sequence[Tensor], room: Tensor) -> Tensor:
        """Fill the room row by row, while these are in the cache."""
        for into, i in zip(room, range(workers.start, workers.stop), strict=True):
            torch.add(rows[i], rows[i - 1], out=into)
            if self._size > 2:
                into.add_(rows[(i + 1) % self._size])
            into.div_(min(3, self._size))
        return room
