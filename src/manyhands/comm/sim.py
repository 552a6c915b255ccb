"""Virtual ranks with clocks, in one thread: a strategy's own code runs on a simulated machine.

Every rank is a greenlet with its own clock. A call that needs other ranks suspends the caller; the rank with the
smallest clock goes on. So whatever ranks compete for (a server's link, the next message) is given out in the order of
virtual time, and every simulation of the same run gives the same result.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import greenlet
import torch
from torch import Tensor

from manyhands.comm.base import ANY, Comm, stack_of
from manyhands.comm.hollow import copied, store
from manyhands.comm.sim_mail import Mailbox, Message, Port, Tag
from manyhands.errors import ManyhandsError


class Machine(ABC):
    """The times of steps, collective calls and messages on the machine that is simulated."""

    shares_ports: bool = False
    """Whether messages that leave a rank at the same time share its port fairly, as connections between hosts do; if
    not, one leaves after the other."""

    @abstractmethod
    def step_s(self, rank: int) -> float:
        """Return how long a rank computes in its next step: a worker its forward and backward, a server its update."""

    @abstractmethod
    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        """Return how long a collective call takes once all of `ranks` have entered it."""

    @abstractmethod
    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        """Return a message's latency, and how long it keeps the ports of its sender and receiver busy."""


@final
class Instant(Machine):
    """A machine on which nothing takes any time, for runs of which only the result matters."""

    def step_s(self, rank: int) -> float:
        return 0.0

    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        return 0.0

    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        return 0.0, 0.0


@final
@dataclass
class _Meeting:
    """A collective call that some ranks have entered."""

    slots: list[Any]
    """The value that each rank brought."""
    num_entered: int = 0
    begun_s: float = 0.0
    """When the last rank so far entered."""
    ended_s: float | None = None
    waiting: list[int] = field(default_factory=list)
    """The ranks to wake at the end."""


@final
class SimWorld:
    """All virtual ranks, their clocks, their messages, and the queue of those that may go on."""

    def __init__(self, size: int, machine: Machine) -> None:
        self.size, self.machine = size, machine
        self.clocks = [0.0] * size
        self._ready: list[tuple[float, int, int]] = []
        self._count = 0
        self._waits_for: dict[int, tuple[object, ...]] = {}
        self._mail = [Mailbox() for _ in range(size)]
        self._expects: dict[int, tuple[int, Tag]] = {}
        self._sends_until_s, self._takes_until_s = [0.0] * size, [0.0] * size
        self._ports = [Port() for _ in range(size)]

    def run(self, work: Callable[["SimComm"], Any]) -> list[Any]:
        """Run `work` on every rank; return each rank's result, or raise the first error."""
        results: list[Any] = [None] * self.size
        world = _Group(self, range(self.size))
        fibers = [greenlet.greenlet(partial(work, SimComm(world, rank))) for rank in range(self.size)]
        for rank in range(self.size):
            self.wake(rank)
        grad = torch.is_grad_enabled()
        try:
            while self._ready:
                rank = heapq.heappop(self._ready)[2]
                results[rank] = fibers[rank].switch()  # the last one is what `work` returned
            stuck = [rank for rank, fiber in enumerate(fibers) if not fiber.dead]
            if stuck:
                reason = " ".join(map(str, self._waits_for[stuck[0]]))
                raise ManyhandsError(f"rank {stuck[0]} waits for ever: {reason}")
        finally:
            for fiber in fibers:
                fiber.throw()  # ends the ranks that a failure left suspended
            torch.set_grad_enabled(grad)
        return results

    def pause(self, rank: int, *reason: object) -> None:
        """Suspend a rank until it is woken; torch's gradient mode, which belongs to the thread, is kept for it."""
        self._waits_for[rank] = reason
        grad = torch.is_grad_enabled()
        greenlet.getcurrent().parent.switch()
        if grad != torch.is_grad_enabled():
            torch.set_grad_enabled(grad)

    def wake(self, rank: int, at_s: float = 0.0) -> None:
        """Let a suspended rank go on, at the time `at_s` or at its own clock if that is later."""
        self.clocks[rank] = max(self.clocks[rank], at_s)
        self._count += 1
        heapq.heappush(self._ready, (self.clocks[rank], self._count, rank))

    def post(self, source: int, to: int, tag: Tag, t: Tensor) -> None:
        """Send a message through the ports of sender and receiver; the receiver's passes one message at a time."""
        if self._ready and self._ready[0][0] < self.clocks[source]:  # ranks whose clocks are behind go first
            self.wake(source)
            self.pause(source, "its turn")
        latency_s, busy_s = self.machine.message_s(source, to, t.nbytes)
        shares, now_s = self.machine.shares_ports, self.clocks[source]
        leaves_s = now_s if shares else max(now_s, self._sends_until_s[source])
        self._sends_until_s[source] = leaves_s + busy_s
        arrives_s = max(leaves_s + latency_s, self._takes_until_s[to]) + busy_s
        message = Message(arrives_s, source, tag, copied(t))
        if shares:
            self._ports[source].add(now_s, busy_s, latency_s, message)
        self._takes_until_s[to] = message.arrives_s
        self._mail[to].put(message)
        if self._expects.get(to) in ((source, tag), (ANY, tag)):
            del self._expects[to]
            self.wake(to, message.arrives_s)

    def take(self, rank: int, source: int, tag: Tag) -> Message:
        """Wait for the first message to `rank` with this source and tag."""
        while (message := self._mail[rank].take(source, tag)) is None:
            self._expects[rank] = (source, tag)
            self.pause(rank, "a message from", *(("anybody",) if source == ANY else ("rank", source)))
        self.clocks[rank] = max(self.clocks[rank], message.arrives_s)
        return message


@final
class _Group:
    """Some ranks of the world, and the collective calls that they make."""

    def __init__(self, world: SimWorld, ranks: Sequence[int]) -> None:
        self.world, self.ranks = world, ranks
        self._meetings: dict[int, _Meeting] = {}
        self._calls = [0] * len(ranks)
        self._link_free_s = 0.0

    def begin(
        self, index: int, value: Any, call: str, num_bytes: int, exchange: Callable[[list[Any]], Any] | None
    ) -> _Meeting:
        """Enter the next call; the last rank to enter lets `exchange` work on all ranks' values."""
        number = self._calls[index]
        self._calls[index] += 1
        meeting = self._meetings.get(number)
        if meeting is None:
            meeting = self._meetings[number] = _Meeting([None] * len(self.ranks))
        meeting.slots[index] = value
        meeting.num_entered += 1
        meeting.begun_s = max(meeting.begun_s, self.world.clocks[self.ranks[index]])
        if meeting.num_entered == len(self.ranks):
            del self._meetings[number]
            cost_s = self.world.machine.collective_s(call, self.ranks, num_bytes) if len(self.ranks) > 1 else 0.0
            # Calls in flight at the same time use the links one after the other, as in a real library.
            meeting.ended_s = max(meeting.begun_s, self._link_free_s) + cost_s
            self._link_free_s = meeting.ended_s
            if exchange is not None:
                exchange(meeting.slots)
            for rank in meeting.waiting:
                self.world.wake(rank, meeting.ended_s)
        return meeting

    def end(self, index: int, meeting: _Meeting, call: str) -> list[Any]:
        """Wait until all ranks have entered the call and its time has passed; return the slots."""
        rank = self.ranks[index]
        if meeting.ended_s is None:
            meeting.waiting.append(rank)
            self.world.pause(rank, "the others in", call)
        assert meeting.ended_s is not None
        self.world.clocks[rank] = max(self.world.clocks[rank], meeting.ended_s)
        return meeting.slots


@final
class SimComm(Comm):
    """A virtual rank's end of a group."""

    features = frozenset({"p2p", "any-source", "split", "servers"})
    meets_in_passes = False  # a rank cannot be suspended in the middle of autograd's own code

    def __init__(self, group: _Group, rank: int) -> None:
        self.rank, self.size, self._group = rank, len(group.ranks), group
        self._world, self._id = group.world, group.ranks[rank]
        self.clock = lambda: self._world.clocks[self._id]

    def advance(self, seconds: float) -> None:
        """Advance this rank's clock, as a computation of this length does."""
        self._world.clocks[self._id] += seconds

    def all_reduce_(self, t: Tensor) -> None:
        self._meet("all-reduce", t, t.nbytes, self._sum_everywhere)

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        meeting = self._group.begin(self.rank, t, "all-reduce", t.nbytes, self._sum_everywhere)

        def end() -> None:
            self._group.end(self.rank, meeting, "all-reduce")

        return end

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        self._meet("reduce", t, t.nbytes, lambda tensors: store(tensors[root], self._total(tensors)))

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        def copy(tensors: list[Tensor]) -> None:
            for i, other in enumerate(tensors):
                if i != root:
                    store(other, tensors[root])

        self._meet("broadcast", t, t.nbytes, copy)

    def all_gather(self, t: Tensor) -> Tensor:
        """Stack copies, since another rank may go on and change its tensor before this one is woken."""
        if t.is_meta:
            self._meet("all-gather", t, t.nbytes)
            return stack_of(t, self.size)
        return torch.stack(self._meet("all-gather", t.clone(), t.nbytes))

    def reduce_scatter(self, t: Tensor) -> Tensor:
        row = torch.empty_like(t[0])

        def scatter(pairs: list[tuple[Tensor, Tensor]]) -> None:
            total = self._total([whole for whole, _ in pairs])
            for i, (_, row_of_rank) in enumerate(pairs):
                store(row_of_rank, total[i])

        self._meet("reduce-scatter", (t, row), t.nbytes, scatter)
        return row

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        self._world.post(self._id, self._group.ranks[to], (id(self._group), tag), t)

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        source_id = ANY if source == ANY else self._group.ranks[source]
        message = self._world.take(self._id, source_id, (id(self._group), tag))
        store(t, message.content)
        return self._group.ranks.index(message.source)

    def barrier(self) -> None:
        self._meet("barrier", None, 0)

    def split(self, color: int) -> Comm:
        def make_groups(slots: list[Any]) -> None:
            """Replace every rank's color by the group of that color."""
            members: dict[int, list[int]] = {}
            for i, c in enumerate(slots):
                members.setdefault(c, []).append(self._group.ranks[i])
            groups = {c: _Group(self._world, ranks) for c, ranks in members.items()}
            slots[:] = [groups[c] for c in slots]

        group: _Group = self._meet("barrier", color, 0, make_groups)[self.rank]
        return SimComm(group, group.ranks.index(self._id))

    def _meet(
        self, call: str, value: Any, num_bytes: int, exchange: Callable[[list[Any]], Any] | None = None
    ) -> list[Any]:
        return self._group.end(self.rank, self._group.begin(self.rank, value, call, num_bytes, exchange), call)

    def _total(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0] if tensors[0].is_meta else self.add(tensors)

    def _sum_everywhere(self, tensors: list[Tensor]) -> None:
        total = self._total(tensors)
        for t in tensors:
            store(t, total)
