"""Messages between virtual ranks: who gets what when."""

from collections.abc import Sequence

import pytest
import torch

from manyhands.comm import ANY
from manyhands.comm.sim import Machine, SimComm, SimWorld
from manyhands.errors import ManyhandsError


class Links(Machine):
    """Messages are 1 s on their way and keep ports busy for 10 s; calls take 5 s."""

    def step_s(self, rank: int) -> float:
        return 0.0

    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        return 5.0

    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        return 1.0, 10.0


def run(size: int, work) -> list:  # type: ignore[no-untyped-def, type-arg]
    return SimWorld(size, Links()).run(work)


def test_messages_queue_for_the_port_of_a_server() -> None:
    def work(comm: SimComm) -> list[float]:
        t = torch.zeros(1)
        if comm.rank > 0:
            comm.send(t, to=0)
            return []
        return [comm.recv(t, source=rank) and comm.clock() for rank in (1, 2, 3)]

    assert run(4, work)[0] == [11.0, 21.0, 31.0]


def test_whoever_sends_first_is_taken_first() -> None:
    def work(comm: SimComm) -> list[int]:
        t = torch.zeros(1)
        if comm.rank > 0:
            comm.advance(float(10 - comm.rank))
            comm.send(t, to=0)
            return []
        return [comm.recv(t, source=ANY) for _ in range(3)]

    assert run(4, work)[0] == [3, 2, 1]


def test_named_and_unnamed_receives_may_alternate() -> None:
    def work(comm: SimComm) -> list[tuple[int, float]]:
        t = torch.zeros(1)
        if comm.rank > 0:
            comm.advance(0.1 * comm.rank)
            for i in range(3):
                comm.advance(1.0)
                comm.send(t.fill_(10 * comm.rank + i), to=0)
            return []
        found = []
        for source in (2, ANY, 1, ANY, ANY, 2):
            sender = comm.recv(t, source=source)
            found.append((sender, float(t)))
        return found

    # Both send at about 1, 2 and 3 s, rank 1 a little before rank 2.
    assert run(3, work)[0] == [(2, 20.0), (1, 10.0), (1, 11.0), (2, 21.0), (1, 12.0), (2, 22.0)]


def test_tags_and_groups_keep_messages_apart() -> None:
    def work(comm: SimComm) -> list[float]:
        part = comm.split(0)
        t = torch.zeros(1)
        if comm.rank == 1:
            comm.send(t.fill_(1), to=0, tag=1)
            part.send(t.fill_(2), to=0, tag=2)
            comm.send(t.fill_(3), to=0, tag=2)
            return []
        found = []
        for group, tag in ((comm, 2), (part, 2), (comm, 1)):
            group.recv(t, source=ANY, tag=tag)
            found.append(float(t))
        return found

    assert run(2, work)[0] == [3.0, 2.0, 1.0]


def test_a_call_ends_its_cost_after_the_last_came() -> None:
    def work(comm: SimComm) -> float:
        comm.advance(float(comm.rank))
        comm.all_reduce_(torch.zeros(1))
        return comm.clock()

    assert run(4, work) == [8.0] * 4


def test_who_waits_for_ever_is_named() -> None:
    def work(comm: SimComm) -> None:
        if comm.rank == 1:
            comm.recv(torch.zeros(1), source=0)

    with pytest.raises(ManyhandsError, match="rank 1 waits for ever: a message from rank 0"):
        run(2, work)
