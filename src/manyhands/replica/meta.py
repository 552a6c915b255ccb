"""The replica of a virtual rank: it has a network's shape but no values, and its passes only advance the clock."""

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
    """When a span of the gradients is final, as a fraction of the time of forward and backward."""

    share: float
    start: int
    stop: int


@dataclass(frozen=True)
class Outline:
    """A network's size, type and shapes, without its values."""

    numel: int
    """Values in `params`: weights and running statistics."""
    num_weights: int
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], ...]
    ready: Callable[[], tuple[GradientReady, ...]] = tuple
    """Returns the spans of the gradients in the order in which they become final; called only if a strategy listens."""

    @property
    def num_bytes(self) -> int:
        """Bytes of weights and running statistics."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Paces:
    """The times of one rank, in seconds; each call of a function draws one."""

    compute_s: Callable[[], float]
    """Forward and backward pass of the next step."""
    update_s: Callable[[float], float]
    """The optimiser's next step over this fraction of the weights."""
    loop_s: Callable[[], float] = lambda: 0.0
    """All other work of a worker in a step."""
    s_per_byte: float = 0.0
    """Reading or writing a tensor, as strategies do that scale or add."""


@final
class MetaReplica(Replica):
    """A replica without memory: operations on its tensors only advance the clock."""

    def __init__(self, outline: Outline, advance: Callable[[float], None], paces: Paces) -> None:
        """Stand for the network of `outline`; `advance` moves the rank's clock forward by some seconds."""
        self._outline, self._advance, self._paces = outline, advance, paces
        self.params = hollow((outline.numel,), outline.dtype, self.charge)
        self.grads = hollow((outline.numel,), outline.dtype, self.charge)
        self.update = Update(self.params, self.grads, outline.num_weights, lambda p: torch.optim.SGD(p, lr=0.0))
        self._listeners: list[Callable[[int, int], None]] = []
        self._ready: tuple[GradientReady, ...] = ()
        self._loss = torch.zeros(())

    def forward_backward(self, batch: Batch | None = None, weight: float = 1.0) -> Tensor:
        """Advance the clock by a forward and backward pass, and announce each span of gradients at its time."""
        total_s, passed = self._paces.compute_s(), 0.0
        for ready in self._ready:
            self._advance((ready.share - passed) * total_s)
            passed = ready.share
            for fn in self._listeners:
                fn(ready.start, ready.stop)
        self._advance((1 - passed) * total_s)
        return self._loss

    def apply(self) -> None:
        self._advance(self._paces.update_s((self.update.stop - self.update.start) / self._outline.numel))
        self.update.steps += 1

    def on_grad_ready(self, fn: Callable[[int, int], None]) -> None:
        self._ready = self._outline.ready()
        self._listeners.append(fn)

    def shapes(self) -> list[tuple[int, ...]]:
        return list(self._outline.shapes)

    def charge(self, num_bytes: int) -> None:
        """Advance the clock by the time that it takes to read or write `num_bytes` bytes."""
        self._advance(num_bytes * self._paces.s_per_byte)


def outline_of(replica: Replica, ready: Callable[[], tuple[GradientReady, ...]] = tuple) -> Outline:
    """Return the outline of a real replica."""
    params = replica.params
    return Outline(params.numel(), replica.update.num_weights, params.dtype, tuple(replica.shapes()), ready)
