"""Sums in one fixed order: wrap any comm and its reductions give the same bits for every number of ranks.

A batch is cut into `lanes` (a power of two); the lanes' gradients are the leaves of one balanced binary tree.
Each rank owns one whole subtree and sums it by itself; here the subtrees are joined in the tree's order.
"""

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor

from manyhands.comm.base import ANY, Comm

CHUNK_BYTES = 4 << 20
"""Bytes of a tensor that are gathered from all ranks at once; whole gradients of many ranks may not fit into memory."""


def subtrees(lanes: int, size: int) -> list[tuple[int, int]]:
    """Cut the tree of `lanes` leaves into `size` subtrees, as even as can be: (first lane, last lane + 1) each."""
    spans = [(0, lanes)]
    while len(spans) < size:
        start, stop = widest = max(spans, key=lambda span: span[1] - span[0])
        middle, at = (start + stop) // 2, spans.index(widest)
        spans[at : at + 1] = [(start, middle), (middle, stop)]
    return spans


def join(parts: list[Tensor], spans: list[tuple[int, int]]) -> Tensor:
    """Return the sum of one tensor per subtree, added in the order of the tree."""
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
        if self.size > 1:
            for chunk in torch.split(t.view(-1), CHUNK_BYTES // t.element_size()):
                chunk.copy_(join(list(self.inner.all_gather(chunk)), self._spans))

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        self.inner.broadcast_(t, root)

    def all_gather(self, t: Tensor) -> Tensor:
        return self.inner.all_gather(t)

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        self.inner.send(t, to, tag)

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        return self.inner.recv(t, source, tag)

    def barrier(self) -> None:
        self.inner.barrier()

    def split(self, color: int) -> Comm:
        return self.inner.split(color)

    def add(self, parts: Iterable[Tensor]) -> Tensor:
        return join(list(parts), self._spans)
