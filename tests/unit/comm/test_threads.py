"""Threads that wait for each other are woken when one fails."""

import threading

import pytest
import torch

from manyhands.comm import ANY, Comm
from manyhands.comm.barrier import GroupAborted
from manyhands.comm.self_ import SelfComm
from manyhands.comm.threads import ThreadComm, ThreadGroup

WAITS = {
    "all_reduce_": lambda c: c.all_reduce_(torch.ones(3)),
    "begin_all_reduce_": lambda c: c.begin_all_reduce_(torch.ones(3))(),
    "reduce_": lambda c: c.reduce_(torch.ones(3)),
    "broadcast_": lambda c: c.broadcast_(torch.ones(3)),
    "all_gather": lambda c: c.all_gather(torch.ones(3)),
    "reduce_scatter": lambda c: c.reduce_scatter(torch.ones(c.size, 3)),
    "barrier": lambda c: c.barrier(),
    "recv": lambda c: c.recv(torch.ones(3), ANY),
    "split": lambda c: c.split(0),
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("early", [True, False], ids=["abort-first", "wait-first"])
def test_an_abort_wakes_whoever_waits(wait: str, early: bool) -> None:
    group = ThreadGroup(3)
    woken: list[str] = []

    def rank(r: int) -> None:
        try:
            WAITS[wait](ThreadComm(group, r))
        except GroupAborted:
            woken.append(f"rank {r}")

    threads = [threading.Thread(target=rank, args=(r,)) for r in (0, 1)]
    if early:
        group.abort()
    for t in threads:
        t.start()
    if not early:
        group.abort()
    for t in threads:
        t.join()
    assert sorted(woken) == ["rank 0", "rank 1"]


def test_an_abort_reaches_the_parts_of_a_split_group(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> None:
        part = comm.split(comm.rank % 2)
        if comm.rank == 3:
            raise ZeroDivisionError
        part.barrier()
        comm.barrier()

    with pytest.raises(ZeroDivisionError):
        ranks(work, 4)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_sum_of_parts_has_the_bits_of_the_threads_own_sum(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    """A server that sums what workers sent gives what they would have had from each other."""
    parts = [torch.randn(101, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i - 2) for i in range(size)]

    def work(comm: Comm) -> list[torch.Tensor]:
        t, u = parts[comm.rank].clone(), parts[comm.rank].clone()
        comm.all_reduce_(t)
        comm.begin_all_reduce_(u)()
        return [t, u, comm.add(parts)]

    for found in ranks(work, size):
        assert all(torch.equal(t, found[0]) for t in found)


def test_a_message_that_has_come_is_taken_even_after_an_abort() -> None:
    group = ThreadGroup(2)
    ThreadComm(group, 0).send(torch.ones(1), 1)
    group.abort()
    t = torch.zeros(1)
    assert ThreadComm(group, 1).recv(t) == 0
    assert t.item() == 1


def test_nobody_is_left_to_send_to_one_rank_alone() -> None:
    with pytest.raises(AssertionError, match="no other rank"):
        SelfComm().recv(torch.zeros(1))
