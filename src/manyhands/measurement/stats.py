"""Statistics of repeated runs: medians with intervals from order statistics, and the figures of scaling."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from manyhands.record.sweep import Interval

T = TypeVar("T")

LEVELS = (2.5, 97.5)
"""Percentiles that a 95 % interval lies between."""
CONFIDENCE = 0.95
"""How likely an interval holds the true median, where there are values enough."""


def median(values: Sequence[float] | npt.NDArray[np.float64]) -> Interval:
    """Return the median, and the narrowest interval between two of the values that holds the true one in 95 % of cases.

    Fewer than six values have none: from the smallest to the largest, five hold it in 93.75 % of cases, three in 75 %.
    The interval says so. It holds whatever the values are distributed like, if they are independent.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    inner = max((k for k in range((n + 1) // 2) if coverage(n, k) >= CONFIDENCE), default=0)
    return Interval(
        value=float(np.median(ordered)),
        low=float(ordered[inner]),
        high=float(ordered[n - 1 - inner]),
        coverage_pct=100 * coverage(n, inner),
    )


def coverage(n: int, inner: int = 0) -> float:
    """Return how likely the true median lies between the smallest and largest of n values, `inner` left out each side.

    It lies outside where at most `inner` of the values fall on one of its sides, on each of which a value is as likely.
    """
    return 1 - sum(math.comb(n, k) for k in range(inner + 1)) / 2.0 ** (n - 1)


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
    return interval.model_copy(update={"value": figure(interval.value), "low": low, "high": high})
