"""A replica that is not there: a network's size, and a clock that runs while it would compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from manyhands.comm.hollow import hollow
from manyhands.replica.base import Batch, Replica
from manyhands.replica.update import Update


@dataclass(frozen=True)
class GradientReady:
    """When a part of the gradients is final, as a share of the time of forward and backward."""

    share: float
    start: int
    stop: int


@dataclass(frozen=True)
class Outline:
    """What a strategy can know of a network without its values."""

    numel: int
    """Values in `params`: weights, and running statistics."""
    num_weights: int
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], ...]
    ready: Callable[[], tuple[GradientReady, ...]] = tuple
    """Tells the parts of the gradients in the order in which they become final; asked only where somebody listens."""

    @property
    def num_bytes(self) -> int:
        """Of the weights, which is what is exchanged."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Paces:
    """What things take one rank."""

    compute_s: Callable[[], float]
    """Draws the forward and backward pass of its next step."""
    update_s: Callable[[float], float]
    """Draws the optimiser's next step, over this share of the weights."""
    loop_s: Callable[[], float] = lambda: 0.0
    """Draws what a worker does in every step besides."""
    s_per_byte: float = 0.0
    """Of going through a tensor, as a strategy does that scales or adds."""


@final
class MetaReplica(Replica):
    """Holds no memory: what a strategy does with its weights takes time, and gives nothing."""

    def __init__(self, outline: Outline, advance: Callable[[float], None], paces: Paces) -> None:
        """Stand for a network; `advance` lets the rank's clock run."""
        self._outline, self._advance, self._paces = outline, advance, paces
        self.params = hollow((outline.numel,), outline.dtype, self.charge)
        self.grads = hollow((outline.numel,), outline.dtype, self.charge)
        self.update = Update(self.params, self.grads, outline.num_weights, lambda p: torch.optim.SGD(p, lr=0.0))
        self._listeners: list[Callable[[int, int], None]] = []
        self._ready: tuple[GradientReady, ...] = ()
        self._loss = torch.zeros(())

    def forward_backward(self, batch: Batch | None = None, weight: float = 1.0) -> Tensor:
        """Let the time of a forward and backward pass go by, and tell on the way what is final."""
        total_s, passed = self._paces.compute_s(), 0.0
        for ready in self._ready:
            self._advance((ready.share - passed) * total_s)
            passed = ready.share
            for fn in self._listeners:
                fn(ready.start, ready.stop)
        self._advance((1 - passed) * total_s)
        return self._loss

    def apply(self) -> None:
        """Let the time of the optimiser's step go by, over the slice that is held."""
        self._advance(self._paces.update_s((self.update.stop - self.update.start) / self._outline.numel))
        self.update.steps += 1

    def on_grad_ready(self, fn: Callable[[int, int], None]) -> None:
        """Tell it in every pass what is final."""
        self._ready = self._outline.ready()
        self._listeners.append(fn)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the network that this stands for."""
        return list(self._outline.shapes)

    def charge(self, num_bytes: int) -> None:
        """Let the time go by that it takes to go through so many bytes."""
        self._advance(num_bytes * self._paces.s_per_byte)


def outline_of(replica: Replica, ready: Callable[[], tuple[GradientReady, ...]] = tuple) -> Outline:
    """Return what is to be known of a real replica."""
    params = replica.params
    return Outline(params.numel(), replica.update.num_weights, params.dtype, tuple(replica.shapes()), ready)
