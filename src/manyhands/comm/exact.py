"""Sums in one fixed order: wrap any comm and its reductions give the same bits for every number of ranks.

A batch is cut into `lanes` (a power of two); the lanes' gradients are the leaves of one balanced binary tree.
Each rank owns one whole subtree and sums it by itself; here the subtrees are joined in the tree's order.
"""

from collections.abc import Callable, Sequence
from typing import final

from torch import Tensor

from manyhands.comm.base import ANY, Comm


def subtrees(lanes: int, size: int) -> list[tuple[int, int]]:
    """Cut the tree of `lanes` leaves into `size` subtrees, as even as can be: (first lane, last lane + 1) each."""
    parts = [(0, lanes)]
    while len(parts) < size:
        widest = max(parts, key=lambda p: p[1] - p[0])
        at = parts.index(widest)
        middle = sum(widest) // 2
        parts[at : at + 1] = [(widest[0], middle), (middle, widest[1])]
    return parts


def join(parts: list[Tensor], spans: list[tuple[int, int]]) -> Tensor:
    """Add up one tensor per subtree in the order of the tree."""
    if len(parts) == 1:
        return parts[0]
    middle = (spans[0][0] + spans[-1][1]) // 2
    cut = next(i for i, span in enumerate(spans) if span[0] >= middle)
    return join(parts[:cut], spans[:cut]) + join(parts[cut:], spans[cut:])


@final
class ExactComm(Comm):
    """Reduce by gathering every rank's subtree and joining them in the tree's order."""

    def __init__(self, inner: Comm, lanes: int, workers: int = 0) -> None:
        """Share the lanes among all ranks, or among the first `workers` where servers come after them."""
        self.inner, self.lanes = inner, lanes
        self.rank, self.size, self.features = inner.rank, inner.size, inner.features
        self.clock = inner.clock
        self._spans = subtrees(lanes, workers or inner.size)

    def all_reduce_(self, t: Tensor) -> None:
        """Join on every rank."""
        if self.size > 1:
            t.copy_(join(list(self.inner.all_gather(t)), self._spans))

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Join when the end is asked for."""
        return lambda: self.all_reduce_(t)

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Join on every rank; the root needs it, the others may have it."""
        self.all_reduce_(t)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Join on every rank and keep the own row."""
        t = t.clone()
        self.all_reduce_(t)
        return t[self.rank]

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Pass on."""
        self.inner.broadcast_(t, root)

    def all_gather(self, t: Tensor) -> Tensor:
        """Pass on."""
        return self.inner.all_gather(t)

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Pass on."""
        self.inner.send(t, to, tag)

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Pass on."""
        return self.inner.recv(t, source, tag)

    def barrier(self) -> None:
        """Pass on."""
        self.inner.barrier()

    def split(self, color: int) -> Comm:
        """Pass on."""
        return self.inner.split(color)

    def add(self, parts: Sequence[Tensor]) -> Tensor:
        """Join one tensor per worker."""
        return join(list(parts), self._spans)
