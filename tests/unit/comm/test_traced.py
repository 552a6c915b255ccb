"""Bytes, messages and seconds, counted by wrapping."""

import pytest
import torch

from manyhands.comm import Comm
from manyhands.comm.self_ import SelfComm
from manyhands.comm.traced import TracedComm

SIZES = [2, 3, 5]


def _counts(ranks, size: int, call) -> list[tuple[int, int, int]]:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> tuple[int, int, int]:
        traced = TracedComm(comm)
        call(traced)
        return traced.bytes_sent, traced.messages, len(traced.collective_s)

    return ranks(work, size)


@pytest.mark.parametrize("size", SIZES)
def test_an_all_reduce_sends_what_the_best_algorithm_must(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    """Each rank sends 2 (p-1)/p of the tensor: it scatters all parts but its own, and gathers likewise."""
    counts = _counts(ranks, size, lambda c: c.all_reduce_(torch.zeros(30 * size)))
    assert counts == [(2 * (size - 1) * 30 * 4, 1, 1)] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_that_is_begun_counts_once_and_as_much(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    def several(c: TracedComm) -> None:
        ends = [c.begin_all_reduce_(torch.zeros(30 * size)) for _ in range(3)]
        assert not c.collective_s, "its time is known when it has ended"
        for end in ends:
            end()
        assert all(s >= 0 for s in c.collective_s)

    assert _counts(ranks, size, several) == [(3 * 2 * (size - 1) * 30 * 4, 3, 3)] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_of_parts_sends_nothing(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    def add(c: TracedComm) -> None:
        assert c.add([torch.ones(3)] * size).tolist() == [size] * 3

    assert _counts(ranks, size, add) == [(0, 0, 0)] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("root", [0, 1])
def test_a_reduce_sends_one_tensor_from_each_but_the_root(ranks, size: int, root: int) -> None:  # type: ignore[no-untyped-def]
    counts = _counts(ranks, size, lambda c: c.reduce_(torch.zeros(7, dtype=torch.float64), root))
    assert counts == [(0 if rank == root else 56, 1, 1) for rank in range(size)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_sends_one_tensor_to_each_but_the_root(ranks, size: int, root: int) -> None:  # type: ignore[no-untyped-def]
    counts = _counts(ranks, size, lambda c: c.broadcast_(torch.zeros(7), root))
    assert counts == [(28 * (size - 1) if rank == root else 0, 1, 1) for rank in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_gathering_and_scattering(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    assert _counts(ranks, size, lambda c: c.all_gather(torch.zeros(7))) == [(28 * (size - 1), 1, 1)] * size
    assert _counts(ranks, size, lambda c: c.reduce_scatter(torch.zeros(size, 7))) == [(28 * (size - 1), 1, 1)] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_reduce_scatter_and_a_gather_cost_an_all_reduce(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    def both(c: Comm) -> None:
        c.all_gather(c.reduce_scatter(torch.zeros(size, 7)))

    whole = _counts(ranks, size, lambda c: c.all_reduce_(torch.zeros(size, 7)))
    assert [sent for sent, *_ in _counts(ranks, size, both)] == [sent for sent, *_ in whole]


@pytest.mark.parametrize("size", SIZES)
def test_a_message_counts_at_its_sender(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    def ring(c: TracedComm) -> None:
        c.send(torch.zeros(5), (c.rank + 1) % c.size)
        c.recv(torch.zeros(5), (c.rank - 1) % c.size)
        assert c.p2p_s > 0

    assert _counts(ranks, size, ring) == [(20, 1, 0)] * size


def test_counts_add_up_and_can_be_forgotten(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> None:
        traced = TracedComm(comm)
        for _ in range(3):
            traced.all_reduce_(torch.zeros(10))
        traced.barrier()
        assert (traced.bytes_sent, traced.messages, len(traced.collective_s)) == (120, 3, 4)
        assert all(s >= 0 for s in traced.collective_s)
        traced.forget()
        assert (traced.bytes_sent, traced.messages, traced.collective_s, traced.p2p_s) == (0, 0, [], 0.0)

    ranks(work, 2)


def test_one_rank_alone_sends_nothing() -> None:
    traced = TracedComm(SelfComm())
    t = torch.ones(3)
    traced.all_reduce_(t)
    traced.begin_all_reduce_(t)()
    traced.broadcast_(t)
    traced.reduce_(t)
    traced.all_gather(t)
    traced.reduce_scatter(t.unsqueeze(0))
    traced.send(t, 0)
    traced.recv(t, 0)
    assert (traced.bytes_sent, traced.messages) == (0, 0)
    assert t.tolist() == [1, 1, 1]


def test_it_looks_like_what_it_wraps(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> None:
        traced = TracedComm(comm)
        assert (traced.rank, traced.size, traced.features) == (comm.rank, comm.size, comm.features)

    ranks(work, 3)


def test_a_run_counts_one_sum_of_the_gradients_a_step(train) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=3, steps=7)
    sent_by_each = 2 * (4 * record.parameters) * 2 // 3
    assert record.bytes_sent == 3 * 7 * sent_by_each
    assert record.messages == 3 * 7
    assert train(steps=7).bytes_sent == 0
