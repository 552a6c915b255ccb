"""Groups of replicas that step alone between two exchanges, one thread per group."""

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
    """A slice of the n replicas; the weights of each are a flat row."""

    workers: slice
    """Their ranks among the n workers."""

    @abstractmethod
    def run(self, steps: range) -> Tensor:
        """Take `steps` with each replica alone; return each step's loss, summed over the replicas."""

    @abstractmethod
    def total(self) -> Tensor:
        """Return the sum of the replicas' weights."""

    @abstractmethod
    def rows(self) -> Tensor:
        """Return the weights of each replica; any block of delayed steps ends here."""

    @abstractmethod
    def set_(self, weights: Tensor) -> None:
        """Give all replicas these weights; the state of their optimisers stays."""

    @abstractmethod
    def exchange(self, rows: Tensor) -> Tensor:
        """Give each replica its row; return a buffer of the same shape that the group no longer uses."""


@final
class StackGroup(ReplicaGroup):
    """Replicas trained as a `Stack`, step by step, with any optimiser."""

    def __init__(self, workers: slice, models: Stack, feed: Feed) -> None:
        self.workers, self._models, self._feed = workers, models, feed

    def run(self, steps: range) -> Tensor:
        plan, losses = self._feed.plan, []
        share = self._feed.share(self.workers, steps)
        for i, step in enumerate(steps):
            x, y = self._feed.batch(share.rows[:, i])
            # Gradients are shares of the global mean; n times a share makes the mean of the steps the global step.
            weights = share.weights[:, i] * plan.size
            loss = self._models.forward_backward(x, y, weights, mix_key(plan.config.seed, step))
            self._models.update.scale = plan.schedule.scale(step)
            self._models.apply()
            losses.append(loss.sum() / plan.size)
        return torch.stack(losses)

    @torch.no_grad()
    def total(self) -> Tensor:
        return self._models.params.sum(0)

    def rows(self) -> Tensor:
        return self._models.params.detach()

    @torch.no_grad()
    def set_(self, weights: Tensor) -> None:
        self._models.params.copy_(weights)

    @torch.no_grad()
    def exchange(self, rows: Tensor) -> Tensor:
        self._models.params.copy_(rows)
        return rows


@final
class Replicas:
    """All n replicas, and the exchanges between them."""

    def __init__(self, groups: Sequence[ReplicaGroup], num_threads: int) -> None:
        self._groups, self._pool = groups, ThreadPoolExecutor(num_threads)
        self._size = max(group.workers.stop for group in groups)
        self._buffers: list[Tensor] = []
        """One per group, for the weights after a mixing."""

    def close(self) -> None:
        """End the pool of threads."""
        self._pool.shutdown(cancel_futures=True)

    def run(self, steps: range) -> list[float]:
        """Take `steps` with every replica alone; return the loss of each step over its global batch."""
        of_groups = list(self._pool.map(lambda group: group.run(steps), self._groups))
        losses: list[float] = torch.stack(of_groups).double().sum(0).tolist()
        return losses

    def mean(self) -> Tensor:
        """Return the mean of the replicas' weights."""
        totals = list(self._pool.map(lambda group: group.total(), self._groups))
        return torch.stack(totals).sum(0).div_(self._size)

    def average_(self) -> None:
        """Give every replica the mean of all weights."""
        mean = self.mean()
        for group in self._groups:
            group.set_(mean)

    def mix_(self) -> None:
        """Give each replica the mean of its own weights and those of its two neighbours on the ring."""
        if self._size == 1:
            return
        parts = list(self._pool.map(lambda group: group.rows(), self._groups))
        rows = [row for part in parts for row in part]
        if not self._buffers:
            self._buffers = [torch.empty_like(part) for part in parts]
        mixed = list(self._pool.map(lambda group, out: self._mixed(group, rows, out), self._groups, self._buffers))
        self._buffers = [group.exchange(part) for group, part in zip(self._groups, mixed, strict=True)]

    @torch.no_grad()
    def _mixed(self, group: ReplicaGroup, rows: Sequence[Tensor], out: Tensor) -> Tensor:
        """Fill `out` row by row, so that each row stays in the cache."""
        for mean, i in zip(out, range(group.workers.start, group.workers.stop), strict=True):
            torch.add(rows[i], rows[i - 1], out=mean)
            if self._size > 2:
                mean.add_(rows[(i + 1) % self._size])
            mean.div_(min(3, self._size))
        return out
