"""Medians with intervals, pairs of interleaved repeats, and the figures of scaling against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.measurement import stats
from manyhands.record.sweep import Interval

TIMES = st.floats(1e-3, 1e6)


@given(st.lists(TIMES, min_size=1, max_size=12))
def test_the_interval_holds_the_median_and_lies_within_the_observations(values: list[float]) -> None:
    found = stats.median(values)
    assert found.value == np.median(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert stats.median(values) == found


def test_one_observation_is_its_own_interval() -> None:
    assert stats.median([3.5]) == Interval(value=3.5, low=3.5, high=3.5, coverage_pct=0)


@pytest.mark.parametrize("repeats", [2, 3, 5, 6, 7, 9, 12, 15])
def test_an_interval_holds_the_true_median_as_often_as_it_says(repeats: int) -> None:
    random = np.random.default_rng(0)
    found = [stats.median(random.lognormal(0, 0.03, repeats)) for _ in range(2000)]
    (says,) = {interval.coverage_pct for interval in found}
    assert 100 * np.mean([interval.low <= 1 <= interval.high for interval in found]) == pytest.approx(says, abs=2.5)
    assert (says >= 95) == (repeats >= 6)


@pytest.mark.parametrize(("repeats", "coverage"), [(1, 0), (2, 50), (3, 75), (5, 93.75), (6, 96.875), (9, 96.09375)])
def test_few_repeats_cover_less_and_say_so(repeats: int, coverage: float) -> None:
    assert stats.median(list(range(repeats))).coverage_pct == coverage


def test_a_slow_spell_cancels_since_repeats_are_paired() -> None:
    spell = {0: 1.0, 1: 3.0, 2: 1.0, 3: 0.5}
    base = {i: 100 * slow for i, slow in spell.items()}
    assert stats.paired({i: 180 * slow for i, slow in spell.items()}, base) == pytest.approx([1.8] * 4)


def test_a_repeat_whose_base_failed_is_held_against_the_nearest_one() -> None:
    assert stats.paired({0: 6.0, 3: 6.0, 5: 6.0}, {0: 2.0, 4: 3.0}) == [3.0, 2.0, 2.0]


@given(st.floats(0, 1), st.integers(2, 1000))
def test_karp_flatt_gives_the_serial_fraction_of_amdahl_back(serial: float, workers: int) -> None:
    assert stats.karp_flatt(1 / (serial + (1 - serial) / workers), workers) == pytest.approx(serial, abs=1e-9)


@given(TIMES, TIMES)
def test_improvement_is_the_share_of_time_saved(before_s: float, after_s: float) -> None:
    assert stats.improvement_pct(before_s / after_s) == pytest.approx((before_s - after_s) / before_s * 100)


def test_a_falling_figure_keeps_its_bounds_in_order() -> None:
    found = stats.through(lambda x: 1 / x, Interval(value=2, low=1, high=4))
    assert found == Interval(value=0.5, low=0.25, high=1)
