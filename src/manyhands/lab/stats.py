"""Statistics of repeated runs: medians with bootstrap intervals, and the figures of scaling."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from manyhands.record.sweep import Interval

T = TypeVar("T")

RESAMPLES = 2000
LEVELS = (2.5, 97.5)
"""Percentiles that a 95 % interval lies between."""


def median(values: Sequence[float] | npt.NDArray[np.float64]) -> Interval:
    """Return the median and its 95 % bootstrap interval, by percentiles; the same for the same values.

    With the five repeats of a sweep the interval goes from the smallest to the largest, which holds the true median in
    94 of 100 cases.
    """
    observed = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(0).choice(observed, (RESAMPLES, len(observed)))
    low, high = np.percentile(np.median(drawn, axis=1), LEVELS)
    return Interval(value=float(np.median(observed)), low=float(low), high=float(high))


def partner(runs: Mapping[int, T], repeat: int) -> T:
    """Return the run of this repeat or, where it failed, of the repeat nearest to it in time."""
    return runs[min(runs, key=lambda other: abs(other - repeat))]


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Divide each repeat's value by the base's of the same repeat, so that a slow spell of the machine cancels."""
    return [value / partner(base, repeat) for repeat, value in values.items()]


def efficiency(speed_up: float, workers: int) -> float:
    """Return the share of the ideal speed-up."""
    return speed_up / workers


def improvement_pct(speed_up: float) -> float:
    """Return the papers' performance improvement, (T1 − Tn) / T1 × 100."""
    return (1 - 1 / speed_up) * 100


def karp_flatt(speed_up: float, workers: int) -> float:
    """Return the serial fraction that a measured speed-up tells of (Karp and Flatt 1990)."""
    return (1 / speed_up - 1 / workers) / (1 - 1 / workers)


def through(figure: Callable[[float], float], interval: Interval) -> Interval:
    """Return a figure that rises or falls with a value all along, with its interval."""
    low, high = sorted((figure(interval.low), figure(interval.high)))
    return Interval(value=figure(interval.value), low=low, high=high)
