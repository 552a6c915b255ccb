"""Ranks as threads of one process that share their memory."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from manyhands.comm.barrier import Barrier, Broken
from manyhands.comm.base import ANY, Comm


class GroupAborted(Exception):
    """Another rank of the group failed; this one must not go on waiting for it."""


@final
class ThreadGroup:
    """What the threads of one group share: a barrier, a slot per rank, and the mail between them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[Any] = [None] * size
        self._children: list[ThreadGroup] = []
        self._barrier = Barrier(size)
        self._mail: dict[tuple[int, int], deque[tuple[int, Tensor]]] = defaultdict(deque)
        self._mailed = [threading.Condition() for _ in range(size)]
        """For each rank, so that a message wakes nobody else."""
        self._aborted = False

    def wait(self, rank: int) -> None:
        """Return when every thread of the group is here."""
        try:
            self._barrier.wait(rank)
        except Broken:
            raise GroupAborted from None

    def abort(self) -> None:
        """Wake every waiting thread with `GroupAborted`."""
        self._aborted = True
        self._barrier.abort()
        for mailed in self._mailed:
            with mailed:
                mailed.notify_all()
        for child in self._children:
            child.abort()

    def part(self, size: int) -> "ThreadGroup":
        """Make a group of some of its threads, which an abort reaches too, whenever it comes."""
        child = ThreadGroup(size)
        self._children.append(child)
        if self._aborted:
            child.abort()
        return child

    def post(self, to: int, tag: int, source: int, t: Tensor) -> None:
        """Leave a message for rank `to`."""
        with self._mailed[to]:
            self._mail[to, tag].append((source, t))
            self._mailed[to].notify_all()

    def take(self, to: int, tag: int, source: int) -> tuple[int, Tensor]:
        """Wait for a message and return it with its sender; messages of one sender keep their order."""
        with self._mailed[to]:
            box = self._mail[to, tag]
            while True:
                for i, (sender, t) in enumerate(box):
                    if source in (ANY, sender):
                        del box[i]
                        return sender, t
                if self._aborted:
                    raise GroupAborted
                self._mailed[to].wait()


@final
class ThreadComm(Comm):
    """One thread's end of a `ThreadGroup`."""

    features = frozenset({"p2p", "any-source", "split", "servers"})

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.rank, self.size, self.group = rank, group.size, group
        self._seen: list[Tensor] = []
        self._cut: list[Tensor] = []
        """This rank's slices of the tensors that were seen last."""

    def all_reduce_(self, t: Tensor) -> None:
        """Sum by slices: each thread adds up its own part of everybody's tensor, in rank order."""
        total, *others = self._parts(self._exchange(t))
        for other in others:
            total += other
        for other in others:
            other.copy_(total)
        self._leave(t)

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Sum when the end is asked for: threads have no one else to do it meanwhile."""
        return lambda: self.all_reduce_(t)

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Sum by slices into the root's tensor."""
        parts = self._parts(self._exchange(t))
        total, *others = parts
        for other in others:
            total += other
        if root != 0:
            parts[root].copy_(total)
        self._leave(t)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Copy the root's tensor."""
        tensors = self._exchange(t)
        if self.rank != root:
            t.copy_(tensors[root])
        self._leave(t)

    def all_gather(self, t: Tensor) -> Tensor:
        """Copy everybody's tensor."""
        stacked = torch.stack(self._exchange(t))
        self._leave(t)
        return stacked

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Add up everybody's row for this rank, in rank order."""
        tensors = self._exchange(t)
        total = tensors[0][self.rank].clone()
        for other in tensors[1:]:
            total += other[self.rank]
        self._leave(t)
        return total

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Post a copy."""
        self.group.post(to, tag, self.rank, t.clone())

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Wait for the message and copy it into `t`."""
        sender, message = self.group.take(self.rank, tag, source)
        t.copy_(message)
        return sender

    def barrier(self) -> None:
        """Return when every thread is here."""
        self.group.wait(self.rank)

    def split(self, color: int) -> Comm:
        """Let the first rank of each color make its group, and hand it to the others through the slots."""
        colors = self._share(color)
        members = [rank for rank, c in enumerate(colors) if c == color]
        groups = self._share(self.group.part(len(members)) if members[0] == self.rank else None)
        group: ThreadGroup = groups[members[0]]
        return ThreadComm(group, members.index(self.rank))

    def _share(self, value: Any) -> list[Any]:
        self.group.slots[self.rank] = value
        self.group.wait(self.rank)
        values = list(self.group.slots)
        self.group.wait(self.rank)
        return values

    def _exchange(self, t: Tensor) -> list[Tensor]:
        """Show this rank's tensor to the others and see theirs; they stay readable until `_leave`."""
        assert t.is_contiguous()
        _settle(t)
        self.group.slots[self.rank] = t
        self.group.wait(self.rank)
        return list(self.group.slots)

    def _parts(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return this rank's slice of everybody's tensor; no other rank touches it.

        Step after step exchanges the same tensors, and to cut one is two more operations that want the interpreter.
        """
        if len(self._seen) != len(tensors) or any(a is not b for a, b in zip(self._seen, tensors, strict=True)):
            length = tensors[0].numel()
            start, stop = (length * r // self.size for r in (self.rank, self.rank + 1))
            self._seen, self._cut = tensors, [t.view(-1)[start:stop] for t in tensors]
        return self._cut

    def _leave(self, t: Tensor) -> None:
        _settle(t)
        self.group.wait(self.rank)


def _settle(t: Tensor) -> None:
    """Finish queued GPU work on `t`, since another thread may use another stream or device."""
    if t.is_cuda:
        torch.cuda.synchronize(t.device)
