"""How workers of a host disturb each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_calibration import core_times

from manyhands.model.sharing import (
    arithmetic_s,
    crowded,
    demand_of,
    lock_s,
    lock_slow_down,
    quantiles,
    queue_s,
    queueing,
    unevenness,
)

CURVE, FLAT = {2: 10.0, 4: 15.0, 8: 30.0}, {1: 10.0}


def test_what_two_threads_take_is_not_scaled() -> None:
    assert lock_slow_down(CURVE, 2, 2) == lock_slow_down(FLAT, 2, 2) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("threads", "longer"), [(4, 1.5), (8, 3.0)])
def test_between_measured_numbers_of_threads_the_lock_takes_what_was_measured(threads: int, longer: float) -> None:
    low, value, high = lock_slow_down(CURVE, 2, threads)
    assert value == pytest.approx(longer)
    assert low < value < high
    assert lock_slow_down(CURVE, 8, threads) == pytest.approx((longer,) * 3), "of workers that were measured, no doubt"


def test_beyond_them_it_takes_no_less_and_grows_no_faster_than_the_threads() -> None:
    assert lock_slow_down(CURVE, 2, 32) == pytest.approx((3.0 / 1.2, 6.0, 12.0 * 1.2))
    assert lock_slow_down(FLAT, 2, 8) == pytest.approx((1.0, 2.0, 4.0 * 1.2)), "of one core, from two threads on"
    assert lock_slow_down(FLAT, 4, 8) == pytest.approx((1.0, 2**0.5, 2.0 * 1.2)), "or from the most that were measured"


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


BUSY = core_times({1: [10], 2: [9, 11], 8: [10, 10, 16]}, {1: 100, 2: 150, 8: 450})


@pytest.mark.parametrize(("measured", "longer"), [(1.0, 1.2), (1.5, 3.0), (1.25, 2.1), (9.0, 3.0)])
def test_what_two_took_tells_whether_many_wait_for_memory(measured: float, longer: float) -> None:
    low, value, high = crowded(BUSY, 2, 8, measured)
    assert value == pytest.approx(longer)
    assert (low, high) == pytest.approx((1.2, 3.0)), "at best as computing, at worst as memory"


def test_what_was_measured_does_not_grow() -> None:
    assert crowded(BUSY, 8, 8, 1.5) == pytest.approx((1, 1, 1))


def test_beyond_the_cores_they_may_queue() -> None:
    low, value, high = crowded(core_times(), 2, 64, 1.3)
    assert low == 1
    assert high == pytest.approx(queueing(64, demand_of(2, 1.3)) / 1.3)
    assert value == pytest.approx(high**0.5)
    assert crowded(core_times(), 2, 64, 1.0) == (1, 1, 1), "who do not disturb each other do not queue"


@pytest.mark.parametrize("num", [8, 100])
def test_the_more_cores_are_busy_the_further_the_slowest_is_from_their_mean(num: int) -> None:
    """Of two cores none is slow; of eight every fourth takes twice as long."""
    cores = core_times({2: [10.0] * 8, 8: [10.0] * 6 + [20.0] * 2})
    found = unevenness(cores, 2, 8, num)
    assert len(found) == num
    assert found.mean() == pytest.approx(0, abs=1e-12)
    assert (found.min(), found.max()) == pytest.approx((10 / 12.5 - 1, 20 / 12.5 - 1), rel=0.1)
    assert unevenness(cores, 2, 2, num) == pytest.approx(0)
    assert unevenness(cores, 8, 64, num) == pytest.approx(0), "beyond the cores it stays as it is"
    between = unevenness(cores, 2, 4, num)
    assert found.min() < between.min() < 0 < between.max() < found.max()


def test_arithmetic_takes_as_long_as_the_product_of_matrices() -> None:
    cores = core_times({1: [1000.0], 4: [1000.0, 3000.0]})
    assert arithmetic_s(cores, 2e8, 1) == pytest.approx(2e-3)
    assert arithmetic_s(cores, 2e8, 4) == pytest.approx(4e-3)


def test_an_operation_keeps_the_lock_as_long_as_one_of_bare_threads() -> None:
    found = [lock_s(core_times(lock_us=CURVE), threads) for threads in (2, 4, 64)]
    assert found == pytest.approx([10e-6, 15e-6, 30e-6])


def test_quantiles_of_as_many_samples_are_the_samples() -> None:
    samples = np.array([1.0, 2.0, 5.0])
    assert quantiles(samples, 3) is samples
    assert quantiles(samples, 1) == pytest.approx([2.0])
    assert quantiles(samples, 6) == pytest.approx([1, 1.25, 1.75, 2.75, 4.25, 5])
