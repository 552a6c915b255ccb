"""Medians with intervals, pairs of interleaved repeats, and the figures of scaling against their definitions."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.measurement import stats
from manyhands.record.sweep import Interval

TIMES = st.floats(1e-3, 1e6)
Floats = npt.NDArray[np.float64]
Shape = Callable[..., Floats]


@given(st.lists(TIMES, min_size=1, max_size=12))
def test_the_interval_holds_the_median_and_lies_within_the_observations(values: list[float]) -> None:
    found = stats.median(values)
    assert found.value == np.median(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert stats.median(values) == found


def test_one_observation_is_its_own_interval() -> None:
    assert stats.median([3.5]) == Interval(value=3.5, low=3.5, high=3.5, coverage_pct=0)


def _normal(random: np.random.Generator, *shape: int) -> Floats:
    return 1 + 0.03 * random.standard_normal(shape)


def _skewed(random: np.random.Generator, *shape: int) -> Floats:
    return random.lognormal(0, 0.3, shape)


def _two_humped(random: np.random.Generator, *shape: int) -> Floats:
    return np.where(random.random(shape) < 0.7, 1.0, 1.3) * _normal(random, *shape)


SHAPES = (_normal, _skewed, _two_humped)
"""Times of runs: about one, now and then much longer, or of a machine with a fast and a slow state."""
TRIALS = 20_000


def _held_pct(values: Floats, says: Interval, truth: float) -> float:
    """Return how often the truth lies in the interval of a row; `says` has the places of its bounds in a sorted row."""
    low, high = np.sort(values, axis=1)[:, [int(says.low), int(says.high)]].T
    return float(100 * np.mean((low <= truth) & (truth <= high)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("repeats", range(2, 16))
def test_an_interval_holds_the_true_median_as_often_as_it_says(repeats: int, shape: Shape) -> None:
    random, says = np.random.default_rng(repeats), stats.median(range(repeats))
    truth = float(np.median(shape(random, 1_000_001)))
    assert _held_pct(shape(random, TRIALS, repeats), says, truth) == pytest.approx(says.coverage_pct, abs=1.2)
    assert (says.coverage_pct >= 95) == (repeats >= 6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("repeats", [3, 5, 6, 7, 9, 13, 15])
def test_so_does_that_of_a_speed_up_beside_slow_periods_of_the_machine(repeats: int, shape: Shape) -> None:
    random, says = np.random.default_rng(repeats), stats.median(range(repeats))
    slow = random.lognormal(0, 0.5, (TRIALS, repeats))
    ratios = (slow * shape(random, TRIALS, repeats)) / (slow * shape(random, TRIALS, repeats))
    truth = float(np.median(shape(random, 1_000_001) / shape(random, 1_000_001)))
    assert _held_pct(ratios, says, truth) == pytest.approx(says.coverage_pct, abs=1.2)


@pytest.mark.parametrize("failed", [{2}, {0, 1, 2}, {1, 4, 5}])
def test_speed_ups_that_share_a_baseline_do_not_add_to_what_an_interval_covers(failed: set[int]) -> None:
    random, repeats, held = np.random.default_rng(0), 7, []
    for times in random.lognormal(0, 0.1, (1500, 2, repeats)):
        base = {i: time for i, time in enumerate(times[0]) if i not in failed}
        interval = stats.ratio(dict(enumerate(times[1])), base)
        held.append(interval.low <= 1 <= interval.high)
    assert interval.coverage_pct == stats.median(range(repeats - len(failed))).coverage_pct
    assert 100 * np.mean(held) >= interval.coverage_pct - 1.5


def test_without_any_pair_of_the_same_repeat_nothing_is_covered() -> None:
    interval = stats.ratio({0: 6.0, 1: 9.0}, {2: 3.0})
    assert (interval.value, interval.coverage_pct, interval.is_known) == (2.5, 0, False)
    assert stats.num_unpaired({0: 6.0, 1: 9.0, 2: 1.0}, {2: 3.0}) == 2


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
