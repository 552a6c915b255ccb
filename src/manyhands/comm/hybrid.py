"""Threads inside MPI processes: every exchange goes threads → process → all, and back."""

from typing import final

import torch
from torch import Tensor

from manyhands.comm.base import ANY, Comm, stack_of
from manyhands.comm.threads import ThreadComm


@final
class HybridComm(Comm):
    """Rank `process × threads + thread`; only the first thread of a process makes the collective calls of `outer`."""

    features = frozenset({"p2p"})

    def __init__(self, outer: Comm, inner: ThreadComm) -> None:
        self._outer, self._inner = outer, inner
        self._leads = inner.rank == 0
        self.rank = outer.rank * inner.size + inner.rank
        self.size = outer.size * inner.size

    def all_reduce_(self, t: Tensor) -> None:
        self._inner.reduce_(t)
        if self._leads:
            self._outer.all_reduce_(t)
        self._inner.broadcast_(t)

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        process, thread = divmod(root, self._inner.size)
        self._inner.reduce_(t)
        if self._leads:
            self._outer.reduce_(t, process)
        if self._outer.rank == process and thread != 0:
            self._inner.broadcast_(t)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Copy from the root to the first thread of its process, from there to all processes, then to all threads."""
        process, thread = divmod(root, self._inner.size)
        if self._outer.rank == process and thread != 0:
            self._inner.broadcast_(t, thread)
        if self._leads:
            self._outer.broadcast_(t, process)
        self._inner.broadcast_(t)

    def all_gather(self, t: Tensor) -> Tensor:
        of_threads = self._inner.all_gather(t)
        stacked = self._outer.all_gather(of_threads) if self._leads else stack_of(of_threads, self._outer.size)
        self._inner.broadcast_(stacked)
        return stacked.flatten(0, 1)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Sum within the process, then scatter a block of rows to each process and one row to each thread."""
        t = t.clone()
        self._inner.reduce_(t)
        blocks = t.view(self._outer.size, self._inner.size, *t.shape[1:])
        block = self._outer.reduce_scatter(blocks) if self._leads else torch.empty_like(blocks[0])
        self._inner.broadcast_(block)
        return block[self._inner.rank].clone()

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Send through memory within the process, and between processes with both threads' numbers in the tag."""
        process, thread = divmod(to, self._inner.size)
        if process == self._outer.rank:
            self._inner.send(t, thread, tag)
        else:
            self._outer.send(t, process, self._wire_tag(tag, self._inner.rank, thread))

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Receive from the named rank; to wait for any rank would need two waits at once."""
        assert source != ANY, "the hybrid comm has no 'any-source'"
        process, thread = divmod(source, self._inner.size)
        if process == self._outer.rank:
            self._inner.recv(t, thread, tag)
        else:
            self._outer.recv(t, process, self._wire_tag(tag, thread, self._inner.rank))
        return source

    def barrier(self) -> None:
        self._inner.barrier()
        if self._leads:
            self._outer.barrier()
        self._inner.barrier()

    def split(self, color: int) -> Comm:
        raise AssertionError("the hybrid comm has no 'split'")

    def _wire_tag(self, tag: int, sender: int, receiver: int) -> int:
        return (tag * self._inner.size + sender) * self._inner.size + receiver
