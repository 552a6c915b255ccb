"""Virtual ranks with clocks, in one thread: a strategy's own code runs on a machine that is not there.

Every rank is a greenlet with a clock of its own. A call that needs others suspends the rank; the one whose clock is
least goes on, so that whatever ranks compete for (a server's link, the next message) is given out in the order of
the virtual time, and a run is the same whenever it is made.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

import greenlet
import torch
from torch import Tensor

from manyhands.comm.base import ANY, Comm, stack_of
from manyhands.comm.hollow import copied, store
from manyhands.comm.sim_mail import Mailbox, Message, Port, Tag
from manyhands.errors import ManyhandsError


class Machine(ABC):
    """What things take on the machine that is simulated."""

    shares_ports: bool = False
    """Whether messages that leave a rank at the same time share its port fairly, as connections between hosts do; if
    not, one leaves after the other."""

    @abstractmethod
    def step_s(self, rank: int) -> float:
        """Return how long a rank computes in its next step: a worker its forward and backward, a server its update."""

    @abstractmethod
    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        """Return how long a collective call takes once all these ranks are there."""

    @abstractmethod
    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        """Return a message's latency, and how long it keeps the ports of its sender and receiver busy."""


@final
class Instant(Machine):
    """Nothing takes any time: for the answer alone."""

    def step_s(self, rank: int) -> float:
        """Return 0 seconds."""
        return 0.0

    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        """Return 0 seconds."""
        return 0.0

    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        """Return 0 seconds."""
        return 0.0, 0.0


@final
class _Meeting:
    """A collective call that some ranks have begun."""

    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.num_here, self.num_left = 0, 0
        self.begun_s = 0.0
        """When the last of them began it."""
        self.ended_s: float | None = None
        self.waiting: list[int] = []
        """The ranks to wake when it has ended."""


@final
class SimWorld:
    """The ranks, their clocks, and who may go on."""

    def __init__(self, size: int, machine: Machine) -> None:
        self.size, self.machine = size, machine
        self.clocks = [0.0] * size
        self._ready: list[tuple[float, int, int]] = []
        self._count = 0
        self._fibers: list[greenlet.greenlet] = []
        self._hub: greenlet.greenlet | None = None
        self._waits_for: dict[int, tuple[object, ...]] = {}
        self._mail = [Mailbox() for _ in range(size)]
        self._expects: dict[int, tuple[int, Tag]] = {}
        self._sends_until_s, self._takes_until_s = [0.0] * size, [0.0] * size
        self._ports = [Port() for _ in range(size)]

    def run(self, work: Callable[["SimComm"], Any]) -> list[Any]:
        """Let every rank do its work; return what each gave, or raise what one raised."""
        results: list[Any] = [None] * self.size
        everybody = _Group(self, range(self.size))

        def rank_main(rank: int) -> None:
            results[rank] = work(SimComm(everybody, rank))

        self._hub = greenlet.getcurrent()
        self._fibers = [greenlet.greenlet(lambda rank=rank: rank_main(rank), self._hub) for rank in range(self.size)]
        for rank in range(self.size):
            self._wake(rank)
        grad = torch.is_grad_enabled()
        try:
            while self._ready:
                self._fibers[heapq.heappop(self._ready)[2]].switch()
            stuck = [rank for rank, fiber in enumerate(self._fibers) if not fiber.dead]
            if stuck:
                reason = " ".join(map(str, self._waits_for[stuck[0]]))
                raise ManyhandsError(f"rank {stuck[0]} waits for ever: {reason}")
        finally:
            for fiber in self._fibers:
                fiber.throw()  # ends what a failure left suspended
            torch.set_grad_enabled(grad)
        return results

    def pause(self, rank: int, *reason: object) -> None:
        """Suspend a rank until it is woken; what torch keeps for the thread, it finds as it left it."""
        assert self._hub is not None
        self._waits_for[rank] = reason
        grad = torch.is_grad_enabled()
        self._hub.switch()
        if grad != torch.is_grad_enabled():
            torch.set_grad_enabled(grad)

    def wake(self, rank: int, at_s: float) -> None:
        """Let a suspended rank go on from this time."""
        self.clocks[rank] = max(self.clocks[rank], at_s)
        self._wake(rank)

    def take_turn(self, rank: int) -> None:
        """Let those go first whose clocks are behind."""
        if self._ready and self._ready[0][0] < self.clocks[rank]:
            self._wake(rank)
            self.pause(rank, "its turn")

    def _wake(self, rank: int) -> None:
        self._count += 1
        heapq.heappush(self._ready, (self.clocks[rank], self._count, rank))

    def post(self, source: int, to: int, tag: Tag, t: Tensor) -> None:
        """Send a message through the sender's and the receiver's ports, which pass one at a time."""
        self.take_turn(source)
        latency_s, busy_s = self.machine.message_s(source, to, t.nbytes)
        shares, now_s = self.machine.shares_ports, self.clocks[source]
        leaves_s = now_s if shares else max(now_s, self._sends_until_s[source])
        self._sends_until_s[source] = leaves_s + busy_s
        self._count += 1
        arrives_s = max(leaves_s + latency_s, self._takes_until_s[to]) + busy_s
        message = Message(arrives_s, self._count, source, tag, copied(t))
        if shares:
            self._ports[source].add(now_s, busy_s, latency_s, message)
        self._takes_until_s[to] = message.arrives_s
        self._mail[to].put(message)
        if self._expects.get(to) in ((source, tag), (ANY, tag)):
            del self._expects[to]
            self.wake(to, message.arrives_s)

    def take(self, rank: int, source: int, tag: Tag) -> Message:
        """Wait for the fitting message that arrives first."""
        while (first := self._mail[rank].first(source, tag)) is None:
            self._expects[rank] = (source, tag)
            self.pause(rank, "a message from", *(("anybody",) if source == ANY else ("rank", source)))
        self._mail[rank].drop(first)
        self.clocks[rank] = max(self.clocks[rank], first.arrives_s)
        return first


@final
class _Group:
    """Some ranks of the world, and the calls that they make together."""

    def __init__(self, world: SimWorld, ranks: Sequence[int]) -> None:
        self.world, self.ranks = world, ranks
        self._meetings: dict[int, _Meeting] = {}
        self._calls = [0] * len(ranks)
        self._link_free_s = 0.0

    def begin(self, index: int, value: Any, call: str, num_bytes: int, end: Callable[[list[Any]], Any]) -> int:
        """Enter a call; the last to come lets `end` do what it does. Returns the call's number."""
        number = self._calls[index]
        self._calls[index] += 1
        meeting = self._meetings.get(number)
        if meeting is None:
            meeting = self._meetings[number] = _Meeting(len(self.ranks))
        meeting.slots[index] = value
        meeting.num_here += 1
        meeting.begun_s = max(meeting.begun_s, self.world.clocks[self.ranks[index]])
        if meeting.num_here == len(self.ranks):
            cost_s = self.world.machine.collective_s(call, self.ranks, num_bytes) if len(self.ranks) > 1 else 0.0
            # One call at a time has the links, as a library's calls do that are in flight together.
            meeting.ended_s = max(meeting.begun_s, self._link_free_s) + cost_s
            self._link_free_s = meeting.ended_s
            end(meeting.slots)
            for rank in meeting.waiting:
                self.world.wake(rank, meeting.ended_s)
        return number

    def end(self, index: int, number: int, call: str) -> list[Any]:
        """Wait until all have entered the call and its time has passed; return what each brought."""
        meeting, rank = self._meetings[number], self.ranks[index]
        if meeting.ended_s is None:
            meeting.waiting.append(rank)
            self.world.pause(rank, "the others in", call)
        assert meeting.ended_s is not None
        self.world.clocks[rank] = max(self.world.clocks[rank], meeting.ended_s)
        meeting.num_left += 1
        if meeting.num_left == len(self.ranks):
            del self._meetings[number]
        return meeting.slots


@final
class SimComm(Comm):
    """A virtual rank's end of a group; `advance` lets its clock run while it computes."""

    features = frozenset({"p2p", "any-source", "split", "servers"})

    def __init__(self, group: _Group, rank: int) -> None:
        self.rank, self.size, self._group = rank, len(group.ranks), group
        self._world, self._id = group.world, group.ranks[rank]
        self.clock = lambda: self._world.clocks[self._id]

    def advance(self, seconds: float) -> None:
        """Let this rank compute for so long."""
        self._world.clocks[self._id] += seconds

    def all_reduce_(self, t: Tensor) -> None:
        """Sum in rank order."""
        self._meet("all-reduce", t, t.nbytes, _sum_everywhere)

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Enter the call now, and wait for its end when that is asked for."""
        number = self._group.begin(self.rank, t, "all-reduce", t.nbytes, _sum_everywhere)

        def end() -> None:
            self._end(number, "all-reduce")

        return end

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Sum in rank order into the root's tensor."""
        self._meet("reduce", t, t.nbytes, lambda tensors: store(tensors[root], _total(tensors)))

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Copy the root's tensor to the others'."""

        def copy(tensors: list[Tensor]) -> None:
            for i, other in enumerate(tensors):
                if i != root:
                    store(other, tensors[root])

        self._meet("broadcast", t, t.nbytes, copy)

    def all_gather(self, t: Tensor) -> Tensor:
        """Stack copies, which are made before anybody goes on."""
        if t.is_meta:
            self._meet("all-gather", t, t.nbytes, _nothing)
            return stack_of(t, self.size)
        copies = self._meet("all-gather", t.clone(), t.nbytes, _nothing)
        return torch.stack(copies)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Sum in rank order, and take this rank's row."""
        row = torch.empty_like(t[0])

        def share(pairs: list[tuple[Tensor, Tensor]]) -> None:
            total = _total([whole for whole, _ in pairs])
            for i, (_, own) in enumerate(pairs):
                store(own, total[i])

        self._meet("reduce-scatter", (t, row), t.nbytes, share)
        return row

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Post a copy; the ports are busy with it, the sender is not."""
        self._world.post(self._id, self._group.ranks[to], self._tag(tag), t)

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Wait for the message to arrive."""
        wanted = ANY if source == ANY else self._group.ranks[source]
        message = self._world.take(self._id, wanted, self._tag(tag))
        store(t, message.content)
        return self._group.ranks.index(message.source)

    def barrier(self) -> None:
        """Wait for the others."""
        self._meet("barrier", None, 0, _nothing)

    def split(self, color: int) -> Comm:
        """Let the last to come make the groups of all colors."""
        groups: dict[int, _Group] = {}
        bringing = self._meet("barrier", (color, groups), 0, self._make_groups)
        made: dict[int, _Group] = bringing[0][1]
        mine = made[color]
        return SimComm(mine, list(mine.ranks).index(self._id))

    def _make_groups(self, bringing: list[tuple[int, dict[int, _Group]]]) -> None:
        colors = [color for color, _ in bringing]
        for color in set(colors):
            ranks = [self._group.ranks[i] for i, c in enumerate(colors) if c == color]
            bringing[0][1][color] = _Group(self._world, ranks)

    def _meet(self, call: str, value: Any, num_bytes: int, end: Callable[[list[Any]], Any]) -> list[Any]:
        return self._end(self._group.begin(self.rank, value, call, num_bytes, end), call)

    def _end(self, number: int, call: str) -> list[Any]:
        return self._group.end(self.rank, number, call)

    def _tag(self, tag: int) -> Tag:
        """Keep the messages of groups apart that share ranks."""
        return (id(self._group), tag)


def _sum_everywhere(tensors: list[Tensor]) -> None:
    total = _total(tensors)
    for t in tensors:
        store(t, total)


def _total(tensors: list[Tensor]) -> Tensor:
    if tensors[0].is_meta:
        return tensors[0]
    total = tensors[0].clone()
    for t in tensors[1:]:
        total += t
    return total


def _nothing(values: list[Any]) -> None:
    """The call moves no numbers, or those who entered it do so."""
