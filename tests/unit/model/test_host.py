"""Calls on the calibrated host: as measured where they were measured, and by the formulas beyond."""

import numpy as np
import pytest
from made_up_calibration import GAMMA, LINK, LOCK_US, call_times, comm

from manyhands.model.fit_comm import cost_s
from manyhands.model.host import HostCalls, overhead_s
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import CallTimes


@pytest.mark.parametrize("engine", ["threads", "mpi"])
def test_measured_points_are_met_exactly(engine: str) -> None:
    points = call_times(comm(engine).model, ranks=(2, 4), spread=0.3)
    host = HostCalls(comm(engine, points))
    for each in points:
        assert host.quiet_s(each.call, each.ranks, each.num_bytes) == pytest.approx(1e-6 * undisturbed(each.us))


def test_between_two_sizes_it_is_linear_and_goes_on_beyond_the_last() -> None:
    """`send` is so itself, so the points' line must be that of the formula, wherever one looks."""
    host = HostCalls(comm())
    for num_bytes in (4, 100, 10_000, 10**6, 10**8):
        assert host.quiet_s("send", 2, num_bytes) == pytest.approx(LINK.message_s(float(num_bytes)))


@pytest.mark.parametrize("engine", ["threads", "mpi"])
@pytest.mark.parametrize("p", [3, 4, 64])
@pytest.mark.parametrize(("factor", "more_us"), [(1.0, 50.0), (0.5, 0.0)])
def test_other_numbers_of_ranks_grow_as_the_formulas_say(engine: str, p: int, factor: float, more_us: float) -> None:
    """Where calls take so much longer than by the formulas, so they do with any number of ranks; half as long, too."""
    model = comm(engine).model
    points = call_times(model, ranks=(2, 16))
    points = [each.model_copy(update={"us": [factor * us + more_us for us in each.us]}) for each in points]
    host = HostCalls(comm(engine, points), lock_us=LOCK_US)
    for num_bytes in (8, 4096, 2**21):
        expected = factor * cost_s(model, "all-reduce", p, num_bytes, LINK, GAMMA) + 1e-6 * more_us
        assert host.quiet_s("all-reduce", p, num_bytes) == pytest.approx(expected, rel=1e-6)


def test_threads_take_longer_to_meet_where_the_lock_is_handed_on_more_slowly() -> None:
    fast, slow = (HostCalls(comm("threads"), lock_us={2: 10.0, 8: us}) for us in (10.0, 30.0))
    assert slow.quiet_s("barrier", 8, 0) == pytest.approx(3 * fast.quiet_s("barrier", 8, 0))
    assert slow.message_s(0, 8) == pytest.approx([3 * each for each in fast.message_s(0, 8)])
    assert slow.message_s(0, 2) == fast.message_s(0, 2)


def test_operations_of_threads_take_what_those_of_bare_threads_do() -> None:
    """Whatever α was fitted: the first thread waits for seven others, an operation each, and they for it."""
    points = [each for each in call_times("slices") if each.call != "barrier"]
    host = HostCalls(comm("threads", points), lock_us={2: 10.0, 8: 10.0})
    assert host.quiet_s("barrier", 8, 0) == pytest.approx(7 * 20e-6)


def test_one_rank_sends_nothing() -> None:
    assert HostCalls(comm()).quiet_s("all-reduce", 1, 1e6) == 0


def test_a_call_that_was_not_measured_is_left_to_the_formulas() -> None:
    points = [each for each in call_times("messages") if each.call != "reduce-scatter"]
    expected = cost_s("messages", "reduce-scatter", 2, 1e6, LINK, GAMMA)
    assert HostCalls(comm("mpi", points)).quiet_s("reduce-scatter", 2, 1e6) == pytest.approx(expected)


def test_what_was_seen_in_the_middle_of_steps_goes_before_what_was_seen_alone() -> None:
    in_steps = CallTimes(call="all-reduce", ranks=2, num_bytes=2**20, us=[900.0, 1000.0, 1000.0, 1000.0, 3000.0])
    host = HostCalls(comm(), [in_steps])
    assert host.quiet_s("all-reduce", 2, 2**20) == pytest.approx(1e-3)
    assert host.mean_s("all-reduce", 2, 2**20) == pytest.approx(1e-6 * np.mean(in_steps.us))
    assert sorted(host.jitter("all-reduce", 2**20)) == pytest.approx([0.9, 1, 1, 1, 3])
    assert host.jitter("reduce", 2**20) == pytest.approx(np.ones_like(host.jitter("reduce", 2**20)))


def test_the_mean_is_that_of_calls_which_take_about_as_long() -> None:
    """A short call that is disturbed takes several times as long, of which a long one hardly notices anything."""
    varying = {0: [4.0, 4.0, 4.0, 4.0, 24.0], 2**20: [4000.0, 4000.0, 4000.0, 4000.0, 4020.0]}
    points = [
        CallTimes(call=call, ranks=2, num_bytes=num_bytes, us=us)
        for call in ("reduce", "send", "stream")
        for num_bytes, us in varying.items()
    ]
    host = HostCalls(comm("mpi", points))
    for num_bytes, us in varying.items():
        assert host.mean_s("reduce", 2, num_bytes) == pytest.approx(1e-6 * np.mean(us))
    assert host.mean_s("reduce", 2, 2**21) == pytest.approx(host.quiet_s("reduce", 2, 2**21), rel=0.01)


def test_a_message_is_latency_and_what_it_keeps_the_ports_busy() -> None:
    latency_s, busy_s = HostCalls(comm()).message_s(2**21)
    assert latency_s + busy_s == pytest.approx(LINK.message_s(float(2**21)))
    assert busy_s == pytest.approx(LINK.busy_s(float(2**21)))


def test_each_further_message_of_a_stream_tells_the_overhead() -> None:
    assert overhead_s(call_times("messages")) == pytest.approx(LINK.overhead_s)
