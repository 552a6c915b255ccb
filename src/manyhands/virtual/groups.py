"""Groups of replicas that step alone between two exchanges."""

from abc import ABC, abstractmethod
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
