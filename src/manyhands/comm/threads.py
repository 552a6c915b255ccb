"""Ranks as threads of one process that share their memory."""

import threading
from collections import defaultdict, deque
from operator import is_not
from typing import Any, final

import torch
from torch import Tensor

from manyhands.comm.barrier import Barrier, GroupAborted
from manyhands.comm.base import ANY, Comm


@final
class ThreadGroup:
    """What the threads of one group share: a barrier, a slot per rank, and the messages between them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[Any] = [None] * size
        self._children: list[ThreadGroup] = []
        self.barrier = Barrier(size)
        self.mail: dict[tuple[int, int], deque[tuple[int, Tensor]]] = defaultdict(deque)
        """By receiver and tag, each message with its sender."""
        self.mailed = [threading.Condition() for _ in range(size)]
        """One per rank, so that a message wakes its receiver alone."""
        self.aborted = False

    def abort(self) -> None:
        """Wake every waiting thread with `GroupAborted`."""
        self.aborted = True
        self.barrier.abort()
        for mailed in self.mailed:
            with mailed:
                mailed.notify_all()
        for child in self._children:
            child.abort()

    def part(self, size: int) -> "ThreadGroup":
        """Return a new group for some of the threads; it is aborted with this one."""
        child = ThreadGroup(size)
        self._children.append(child)
        if self.aborted:
            child.abort()
        return child


@final
class ThreadComm(Comm):
    """One thread's end of a `ThreadGroup`."""

    features = frozenset({"p2p", "any-source", "split", "servers"})

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.rank, self.size, self.group = rank, group.size, group
        self._last: list[Tensor | None] = [None] * self.size
        """Every rank's tensor in the last reduction."""
        self._slices: list[Tensor] = []
        """This rank's slice of each."""

    def all_reduce_(self, t: Tensor) -> None:
        """Sum by slices: each thread adds up its slice of every rank's tensor, in rank order."""
        total, *others = self._slices_of(self._exchange(t))
        for other in others:
            total += other
        for other in others:
            other.copy_(total)
        self._leave(t)

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        slices = self._slices_of(self._exchange(t))
        total, *others = slices
        for other in others:
            total += other
        if root != 0:
            slices[root].copy_(total)
        self._leave(t)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        tensors = self._exchange(t)
        if self.rank != root:
            t.copy_(tensors[root])
        self._leave(t)

    def all_gather(self, t: Tensor) -> Tensor:
        stacked = torch.stack(self._exchange(t))
        self._leave(t)
        return stacked

    def reduce_scatter(self, t: Tensor) -> Tensor:
        tensors = self._exchange(t)
        total = tensors[0][self.rank].clone()
        for other in tensors[1:]:
            total += other[self.rank]
        self._leave(t)
        return total

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        message = t.clone()
        with self.group.mailed[to]:
            self.group.mail[to, tag].append((self.rank, message))
            self.group.mailed[to].notify_all()

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        sender, message = self._take(source, tag)
        t.copy_(message)
        return sender

    def barrier(self) -> None:
        self.group.barrier.wait(self.rank)

    def split(self, color: int) -> Comm:
        """Let the first rank of each color make the group, and pass it to the others through its slot."""
        members = [rank for rank, c in enumerate(self.all_gather(torch.tensor(color)).tolist()) if c == color]
        if members[0] == self.rank:
            self.group.slots[self.rank] = self.group.part(len(members))
        self.barrier()
        group: ThreadGroup = self.group.slots[members[0]]
        self.barrier()
        return ThreadComm(group, members.index(self.rank))

    def _take(self, source: int, tag: int) -> tuple[int, Tensor]:
        """Wait for a message; return its sender and content. Messages of one sender keep their order."""
        with self.group.mailed[self.rank]:
            messages = self.group.mail[self.rank, tag]
            while True:
                for i, (sender, message) in enumerate(messages):
                    if source in (ANY, sender):
                        del messages[i]
                        return sender, message
                if self.group.aborted:
                    raise GroupAborted
                self.group.mailed[self.rank].wait()

    def _exchange(self, t: Tensor) -> list[Tensor]:
        """Publish this rank's tensor and return every rank's; they stay valid until `_leave`."""
        assert t.is_contiguous()
        _settle(t)
        self.group.slots[self.rank] = t
        self.group.barrier.wait(self.rank)
        return list(self.group.slots)

    def _slices_of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return this rank's slice of every rank's tensor; no other rank touches it.

        Most steps reduce the same tensors again, whose slices are kept: slicing needs the interpreter lock.
        """
        if any(map(is_not, self._last, tensors)):
            length = tensors[0].numel()
            start, stop = (length * r // self.size for r in (self.rank, self.rank + 1))
            self._last, self._slices = [*tensors], [t.view(-1)[start:stop] for t in tensors]
        return self._slices

    def _leave(self, t: Tensor) -> None:
        _settle(t)
        self.group.barrier.wait(self.rank)


def _settle(t: Tensor) -> None:
    """Finish queued GPU work on `t`, since another thread may use another stream or device."""
    if t.is_cuda:
        torch.cuda.synchronize(t.device)
