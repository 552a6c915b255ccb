"""The meter splits the time of exchanges into what they took and what was waited, and agrees on losses and stopping."""

import itertools
import math
import time

import pytest
import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.comm.exact import subtrees
from manyhands.comm.self_ import SelfComm
from manyhands.comm.traced import TracedComm
from manyhands.errors import Diverged
from manyhands.training.meter import WARM_UP, StepMeter, TimeSplit, last_ranks


def _meter(comm: Comm, losses: list[Tensor], calls: list[float], p2p_s: float = 0.0, lanes: int = 0) -> StepMeter:
    """Make a meter with made-up losses and durations of calls."""
    traced = TracedComm(comm)
    traced.collective_s.extend(calls)
    traced.p2p_s = p2p_s
    meter = StepMeter(comm, traced, lanes)
    meter.start()
    for loss in losses:
        meter.add(loss, 0.001, 0.0005)
    return meter


MADE_UP = [[0.5, 0.1, 0.3], [0.2, 0.4, 0.3], [0.9, 0.1, 0.7]]
"""Seconds of three collective calls on three ranks: the shortest are 0.2, 0.1 and 0.3."""


def _flush(meter: StepMeter) -> float:
    """Flush; return how long it took, which is the most that meeting the others can have taken."""
    begun = time.perf_counter()
    meter.flush(0, stop=False)
    return time.perf_counter() - begun


def test_of_each_call_the_shortest_is_the_exchange_and_the_rest_was_waited(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> tuple[float, float, float]:
        meter = _meter(comm, [torch.tensor(1.0)], MADE_UP[comm.rank])
        met_s = _flush(meter)
        assert meter.traced.collective_s == []
        return meter.split.comm_s, meter.split.wait_s, met_s

    for own, (comm_s, wait_s, met_s) in zip(MADE_UP, ranks(work, 3), strict=True):
        assert comm_s == pytest.approx(0.6)
        assert 0 <= wait_s - (sum(own) - 0.6) + 1e-9 <= met_s + 1e-9


def test_what_a_step_sends_counts_as_one_call(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> tuple[float, float, float]:
        meter = _meter(comm, [torch.tensor(1.0)], [0.25], p2p_s=1.0 + comm.rank)
        met_s = _flush(meter)
        assert meter.traced.p2p_s == 0
        return meter.split.comm_s, meter.split.wait_s, met_s

    for rank, (comm_s, wait_s, met_s) in enumerate(ranks(work, 3)):
        assert comm_s == pytest.approx(1.25)
        assert 0 <= wait_s - rank + 1e-9 <= met_s + 1e-9


def test_the_rank_with_the_shortest_calls_of_a_step_was_the_last() -> None:
    calls = torch.tensor([[0.5, 0.1, 0.0, 0.3], [0.2, 0.2, 0.0, 0.4], [0.9, 0.1, 0.0, 0.1]])
    assert last_ranks(calls, [2, 3, 4]).tolist() == [1, 2], "the second step exchanges nothing"


def test_a_rank_counts_the_steps_in_which_it_was_the_last(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> tuple[int, int]:
        meter = StepMeter(comm, TracedComm(comm))
        meter.start()
        for step in range(8):
            meter.traced.collective_s.append(1.0 if comm.rank == step % 4 // 3 else 2.0)
            meter.add(torch.tensor(1.0), 0.001, 0.0)
        meter.flush(0, stop=False)
        return meter.split.lasts, meter.split.exchanges

    assert ranks(work, 2) == [(6, 8), (2, 8)]


def test_gathering_is_a_part_of_the_passes(ranks) -> None:  # type: ignore[no-untyped-def]
    meter = StepMeter(SelfComm(), TracedComm(SelfComm()))
    meter.start()
    for _ in range(3):
        meter.add(torch.tensor(1.0), 0.001, 0.5, 0.25)
    meter.flush(0, stop=False)
    assert (meter.split.shared_s, meter.split.gather_s) == (1.5, 0.75)
    assert meter.steady_passes_s == [0.5] * 3


def test_times_add_up_over_flushes(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> tuple[float, float, float]:
        meter = _meter(comm, [torch.tensor(1.0)], [0.5 + 0.5 * comm.rank])
        meter.flush(0, stop=False)
        meter.traced.collective_s.extend([1.0, 1.0 + comm.rank])
        meter.add(torch.tensor(1.0), 0.001, 0.0)
        meter.flush(1, stop=False)
        return meter.split.comm_s, meter.split.wait_s, meter.split.train_s

    for rank, (comm_s, wait_s, train_s) in enumerate(ranks(work, 2)):
        assert comm_s == 2.5
        assert 1.5 * rank <= wait_s <= 1.5 * rank + train_s
        assert train_s > 0


def test_one_rank_alone_neither_exchanges_nor_waits(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> tuple[float, float]:
        meter = _meter(comm, [torch.tensor(1.0)], [0.5])
        meter.flush(0, stop=False)
        return meter.split.comm_s, meter.split.wait_s

    assert ranks(work, 1) == [(0.0, 0.0)]


def test_losses_are_summed_over_the_ranks_step_by_step(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> list[float]:
        losses, stop = _meter(comm, [torch.tensor(float(10**i * (comm.rank + 1))) for i in range(4)], []).flush(
            0, False
        )
        assert stop is False
        return losses

    assert ranks(work, 3) == [[6.0, 60.0, 600.0, 6000.0]] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_exact_losses_continue_the_tree_in_the_networks_type(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    leaves = [torch.randn((), generator=torch.Generator().manual_seed(i)) * 10.0 ** (i - 3) for i in range(8)]

    def tree(parts: list[Tensor]) -> Tensor:
        middle = len(parts) // 2
        return parts[0] if len(parts) == 1 else tree(parts[:middle]) + tree(parts[middle:])

    def work(comm: Comm) -> float:
        a, b = subtrees(8, size)[comm.rank]
        return _meter(comm, [tree(leaves[a:b])], [], lanes=8).flush(0, False)[0][0]

    assert ranks(work, size) == [tree(leaves).item()] * size


@pytest.mark.parametrize("who", [0, 1, 2])
def test_one_rank_that_wants_to_stop_stops_all(ranks, who: int) -> None:  # type: ignore[no-untyped-def]
    assert ranks(lambda comm: _meter(comm, [], []).flush(0, comm.rank == who)[1], 3) == [True] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_ends_the_run_everywhere(ranks, bad: float) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> str:
        meter = _meter(comm, [torch.tensor(1.0), torch.tensor(bad if comm.rank == 1 else 1.0)], [])
        with pytest.raises(Diverged) as caught:
            meter.flush(40, stop=False)
        return str(caught.value)

    for text in ranks(work, 2):
        assert "at step 42" in text
        assert "smaller --lr" in text


def test_ranks_agree_on_when_the_next_flush_is_due(ranks) -> None:  # type: ignore[no-untyped-def]
    def work(comm: Comm) -> list[int]:
        meter = _meter(comm, [], [])
        due = []
        for step in range(60):
            if comm.rank == 1 and step % 7 == 0:
                time.sleep(0.003)
            if meter.add(torch.tensor(0.0), 0.0, 0.0):
                due.append(step)
                meter.flush(step, stop=False)
        return due

    first, *others = ranks(work, 3)
    assert first
    assert all(other == first for other in others)


def test_computing_is_what_is_left_and_never_less_than_nothing() -> None:
    assert TimeSplit(train_s=5.0, comm_s=1.0, wait_s=1.5).compute_s == 2.5
    assert TimeSplit(train_s=1.0, comm_s=1.0, wait_s=1.5).compute_s == 0.0


def test_what_is_neither_shared_nor_exchanged_is_repeated_by_every_worker() -> None:
    split = TimeSplit(steps=10, train_s=5.0, shared_s=2.0, comm_s=1.0, wait_s=0.5)
    assert split.serial_s == 1.5
    assert split.shared_s + split.serial_s + split.comm_s + split.wait_s == split.train_s
    assert TimeSplit(train_s=1.0, shared_s=1.1).serial_s == 0.0


def test_the_first_steps_are_not_steady() -> None:
    comm, now = SelfComm(), itertools.count()
    comm.clock = lambda: float(next(now))  # type: ignore[method-assign]
    meter = StepMeter(comm, TracedComm(comm), lanes=0)
    meter.start()
    for first in range(0, 4 * WARM_UP, 2):
        for _ in range(2):
            meter.add(torch.tensor(1.0), 0.001, 0.0)
        meter.flush(first, stop=False)
    assert meter.split.steps == 4 * WARM_UP
    assert meter.steady.steps == 4 * WARM_UP - WARM_UP - 1, "the warm-up ends with the flush that its last step is in"
    per_step = meter.split.train_s / meter.split.steps
    assert meter.steady.train_s == pytest.approx(meter.steady.steps * per_step)


def test_a_run_that_ends_before_it_is_warm_counts_whole() -> None:
    meter = StepMeter(SelfComm(), TracedComm(SelfComm()), lanes=0)
    meter.start()
    meter.add(torch.tensor(1.0), 0.001, 0.0)
    meter.flush(0, stop=False)
    assert meter.steady == meter.split
