"""The slowest of p: known answers, and the laws that hold for any samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import beta

from manyhands.model.slowest import Slowest

MANY = 4000
LEVELS = (np.arange(MANY) + 0.5) / MANY
"""Probabilities whose quantiles stand for samples, with no luck in them."""
EXPONENTIAL = -np.log1p(-LEVELS)
RANKS = [1, 2, 3, 10, 100, 1000, 10_000, 65_536]
SAMPLES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200)


def harmonic(p: int) -> float:
    return float((1 / np.arange(1, p + 1)).sum())


@pytest.mark.parametrize("p", RANKS)
def test_exponential(p: int) -> None:
    """E max = H_p / λ."""
    fitted = Slowest.of(0.25 * EXPONENTIAL)
    assert float(fitted.expected_s(p)) == pytest.approx(0.25 * harmonic(p), rel=0.02)


@pytest.mark.parametrize("p", RANKS)
def test_uniform(p: int) -> None:
    """E max = p / (p + 1): the tail has an end."""
    assert float(Slowest.of(LEVELS).expected_s(p)) == pytest.approx(p / (p + 1), rel=0.002)


@pytest.mark.parametrize("p", RANKS)
def test_pareto(p: int) -> None:
    """E max = p B(p, 1 − ξ): with samples enough, a tail that is heavier than the exponential is told from it."""
    levels = (np.arange(100_000) + 0.5) / 100_000
    fitted = Slowest.of((1 - levels) ** -0.2)
    assert float(fitted.expected_s(p)) == pytest.approx(p * beta(p, 0.8), rel=0.02)


@pytest.mark.parametrize("p", [1, 2, 3, 7, 50])
def test_few_of_many_samples_is_what_the_samples_themselves_give(p: int) -> None:
    """Σ x_i ((i/m)^p − ((i−1)/m)^p) is exact for draws from the samples; the tail hardly touches it for small p."""
    samples = np.sort(np.random.default_rng(0).gamma(9, 1e-3, MANY))
    shares = (np.arange(MANY + 1) / MANY) ** p
    assert float(Slowest.of(samples).expected_s(p)) == pytest.approx(float(samples @ np.diff(shares)), rel=0.003)


@given(samples=SAMPLES)
def test_of_one_it_is_the_mean(samples: list[float]) -> None:
    assert float(Slowest.of(samples).expected_s(1)) == pytest.approx(np.mean(samples))


@given(samples=SAMPLES)
def test_more_ranks_take_longer_and_doubling_them_never_takes_twice_as_long(samples: list[float]) -> None:
    expected = Slowest.of(samples).expected_s(2 ** np.arange(17))
    assert (np.diff(expected) >= -1e-9 * expected[1:]).all()
    assert (expected[1:] <= 2 * expected[:-1] * (1 + 1e-9)).all()


@given(samples=SAMPLES, factor=st.floats(0.01, 100))
def test_a_machine_that_is_slower_all_over_is_slower_all_over(samples: list[float], factor: float) -> None:
    before, after = Slowest.of(samples), Slowest.of(np.array(samples) * factor)
    assert after.expected_s(RANKS).tolist() == pytest.approx((before.expected_s(RANKS) * factor).tolist(), rel=1e-6)


@given(seconds=st.floats(1e-6, 1e3), count=st.integers(1, 50))
def test_steps_that_are_all_alike(seconds: float, count: int) -> None:
    alike = Slowest.of([seconds] * count)
    assert alike.expected_s(RANKS).tolist() == pytest.approx([seconds] * len(RANKS))
    assert alike.quantile_s(np.random.default_rng(0).random(100)).tolist() == pytest.approx([seconds] * 100)


@pytest.mark.parametrize("samples", [EXPONENTIAL, LEVELS, np.array([1.0, 2.0, 4.0])], ids=["exp", "uniform", "few"])
@pytest.mark.parametrize("p", [1, 2, 64, 65_536])
def test_draws_have_the_expected_mean(samples: np.ndarray, p: int) -> None:
    fitted = Slowest.of(samples)
    drawn = fitted.quantile_s(np.random.default_rng(0).random(40_000), p)
    assert abs(drawn.mean() - fitted.expected_s(p)) < 5 * drawn.std() / 200 + 1e-12


def test_draws_of_one_rank_taken_together_are_as_slow_as_draws_of_the_slowest() -> None:
    fitted, random = Slowest.of(EXPONENTIAL), np.random.default_rng(0)
    together = fitted.quantile_s(random.random((2000, 64))).max(axis=1)
    assert together.mean() == pytest.approx(float(fitted.expected_s(64)), rel=0.03)


@pytest.mark.parametrize("p", [1, 100, 65_536])
def test_quantiles_of_the_slowest(p: int) -> None:
    """Of exponential times, P(max < t) = (1 − e^−t)^p."""
    fitted = Slowest.of(EXPONENTIAL)
    for level in (0.05, 0.5, 0.95):
        truth = -np.log(-np.expm1(np.log(level) / p))
        assert float(fitted.quantile_s(level, p)) == pytest.approx(truth, rel=0.03)


def test_a_quantile_of_samples_is_a_sample() -> None:
    fitted = Slowest.of(np.arange(1.0, 101.0))
    assert fitted.quantile_s([0.0, 0.005, 0.015, 0.495]).tolist() == [1.0, 1.0, 2.0, 50.0]


@pytest.mark.parametrize(("samples", "low", "high"), [(EXPONENTIAL, 0, 0), (LEVELS, -1, -0.9)], ids=["exp", "uniform"])
def test_the_shape_of_the_tail(samples: np.ndarray, low: float, high: float) -> None:
    assert low <= Slowest.of(samples).shape <= high


def test_a_rare_stall_does_not_run_away() -> None:
    """One step in two hundred stalls tenfold: 65,536 ranks wait for a few stalls at most, not for hundreds."""
    steps = np.ones(2000)
    steps[:10] = 10.0
    expected = Slowest.of(steps).expected_s(RANKS)
    assert expected[-1] < 100
    assert expected[3] == pytest.approx(1 + 9 * (1 - 0.995**10), rel=0.2)


def test_arrays_keep_their_shape() -> None:
    fitted = Slowest.of(EXPONENTIAL)
    table = fitted.expected_s([[1, 2], [64, 2]])
    assert table.shape == (2, 2)
    assert table[0, 1] == table[1, 1] == pytest.approx(float(fitted.expected_s(2)))
