"""How workers of a host disturb each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.sharing import crowded, demand_of, handing_on, held_s, queue_s, queueing
from manyhands.record.calibration import CoreTimes

CURVE = {2: 10.0, 4: 15.0, 8: 30.0}


def test_what_two_threads_take_is_not_scaled() -> None:
    assert handing_on(CURVE, 2, 2) == handing_on({}, 2, 2) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("threads", "longer"), [(4, 1.5), (8, 3.0)])
def test_between_measured_numbers_of_threads_the_lock_takes_what_was_measured(threads: int, longer: float) -> None:
    low, value, high = handing_on(CURVE, 2, threads)
    assert value == pytest.approx(longer)
    assert low < value < high
    assert handing_on(CURVE, 8, threads) == pytest.approx((longer,) * 3), "of workers that were measured, no doubt"


def test_beyond_them_it_takes_no_less_and_grows_no_faster_than_the_threads() -> None:
    assert handing_on(CURVE, 2, 32) == pytest.approx((3.0 / 1.2, 6.0, 12.0 * 1.2))
    assert handing_on({}, 2, 8) == pytest.approx((1.0, 2.0, 4.0 * 1.2)), "without a curve, from two threads on"
    assert handing_on({}, 4, 8) == pytest.approx((1.0, 2**0.5, 2.0 * 1.2)), "or from the most that were measured"


@given(st.floats(0.1, 10.0), st.floats(0.0, 1.0))
def test_what_a_step_needs_of_the_lock_is_found_again(alone_s: float, share: float) -> None:
    demand_s = share * alone_s
    assert held_s(alone_s, queue_s(2, demand_s, alone_s - demand_s)) == pytest.approx(demand_s, rel=1e-6, abs=1e-6)


def test_a_lock_that_is_never_free_takes_half_of_what_two_steps_take() -> None:
    assert held_s(1.0, 3.0) == 1.5
    assert held_s(1.0, 0.9) == 0, "two that are faster than one do not wait"


@given(st.integers(1, 200), st.floats(0.01, 2.0), st.floats(0.0, 5.0))
def test_a_queue_serves_one_at_a_time(customers: int, demand_s: float, think_s: float) -> None:
    took_s = queue_s(customers, demand_s, think_s)
    assert took_s >= max(customers * demand_s, think_s + demand_s) * (1 - 1e-9)
    assert took_s <= think_s + customers * demand_s + 1e-9, "at worst each waits for all others"


def test_a_queue_of_three() -> None:
    """Mean value analysis by hand: of two, one is met with probability ½; of three, five sixths wait on average."""
    assert queue_s(1, 2.0, 2.0) == 4.0
    assert queue_s(2, 2.0, 2.0) == pytest.approx(2 + 2 * 1.5)
    assert queue_s(3, 2.0, 2.0) == pytest.approx(2 + 2 * (1 + 2 * 3 / 5))


@given(st.integers(1, 200), st.floats(0, 1))
def test_queueing(customers: int, demand: float) -> None:
    """One waits for nobody; many take as long as the station is busy for all of them, and never less than one."""
    assert queueing(1, demand) == pytest.approx(1)
    took = queueing(customers, demand)
    assert max(1, customers * demand) <= took * (1 + 1e-9)
    assert took <= 1 + (customers - 1) * demand + 1e-9, "at worst each waits for all others"


def test_queueing_of_two() -> None:
    """The second comes while the first is there with the probability of its demand."""
    assert queueing(2, 0.3) == pytest.approx(1.09)


@given(st.integers(2, 64), st.floats(0.01, 0.9))
def test_a_demand_is_found_again(customers: int, demand: float) -> None:
    assert queueing(customers, demand_of(customers, queueing(customers, demand))) == pytest.approx(
        queueing(customers, demand)
    )


BUSY = CoreTimes(compute_us={1: 10, 2: 10, 8: 12}, memory_us={1: 100, 2: 150, 8: 450})


@pytest.mark.parametrize(("measured", "longer"), [(1.0, 1.2), (1.5, 3.0), (1.25, 2.1), (9.0, 3.0)])
def test_what_two_took_tells_whether_many_wait_for_memory(measured: float, longer: float) -> None:
    low, value, high = crowded(BUSY, 2, 8, measured)
    assert value == pytest.approx(longer)
    assert (low, high) == pytest.approx((1.2, 3.0)), "at best as computing, at worst as memory"


def test_what_was_measured_does_not_grow() -> None:
    assert crowded(BUSY, 8, 8, 1.5) == pytest.approx((1, 1, 1))


def test_beyond_the_cores_they_may_queue() -> None:
    low, value, high = crowded(CoreTimes(), 2, 64, 1.3)
    assert low == 1
    assert high == pytest.approx(queueing(64, demand_of(2, 1.3)) / 1.3)
    assert value == pytest.approx(high**0.5)
    assert crowded(CoreTimes(), 2, 64, 1.0) == (1, 1, 1), "who do not disturb each other do not queue"
