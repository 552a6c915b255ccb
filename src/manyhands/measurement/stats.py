"""Statistics of repeated runs: medians with intervals from order statistics, and the figures of scaling."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from manyhands.record.sweep import Interval

T = TypeVar("T")

LEVELS = (2.5, 97.5)
"""Percentiles that bound a 95 % interval."""
CONFIDENCE = 0.95
"""Confidence level of an interval, where there are enough values."""


def median(values: Sequence[float] | npt.NDArray[np.float64], *, independent: int | None = None) -> Interval:
    """Return the median with its narrowest 95 % confidence interval between two order statistics.

    Fewer than six values have none: the range of five covers the true median in 93.75 % of cases, of three in 75 %, and
    the interval's `coverage_pct` says so. It makes no assumption but that the values are independent; where only some
    are, the coverage is that of those, since the others can only widen the interval.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered) if independent is None else independent
    inner = max((k for k in range((n + 1) // 2) if coverage(n, k) >= CONFIDENCE), default=0)
    return Interval(
        value=float(np.median(ordered)),
        low=float(ordered[inner]),
        high=float(ordered[-1 - inner]),
        coverage_pct=100 * max(0.0, coverage(n, inner)),
    )


def coverage(n: int, inner: int = 0) -> float:
    """Return the probability that the true median lies between the extremes of n values, `inner` left out each side.

    It lies outside if at most `inner` values fall on one of its sides; each side is equally likely for a value.
    """
    return 1 - sum(math.comb(n, k) for k in range(inner + 1)) / 2.0 ** (n - 1)


def partner(runs: Mapping[int, T], repeat: int) -> T:
    """Return the run of the same repeat or, where that failed, of the repeat nearest to it in time."""
    return runs[min(runs, key=lambda other: abs(other - repeat))]


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Divide each repeat's value by the base's of the same repeat, so that a slow period of the machine cancels."""
    return [value / partner(base, repeat) for repeat, value in values.items()]


def num_unpaired(values: Mapping[int, float], base: Mapping[int, float]) -> int:
    """Return how many values are divided by the base of another repeat, because that of their own failed."""
    return len(values.keys() - base.keys())


def ratio(values: Mapping[int, float], base: Mapping[int, float]) -> Interval:
    """Return the median of the paired ratios; ratios to the base of another repeat do not narrow its interval."""
    return median(paired(values, base), independent=len(values) - num_unpaired(values, base))


def improvement_pct(speed_up: float) -> float:
    """Return the papers' performance improvement, (T1 − Tn) / T1 × 100."""
    return (1 - 1 / speed_up) * 100


def karp_flatt(speed_up: float, workers: int) -> float:
    """Return the experimentally determined serial fraction of a speed-up (Karp and Flatt 1990)."""
    return (1 / speed_up - 1 / workers) / (1 - 1 / workers)


def through(figure: Callable[[float], float], interval: Interval) -> Interval:
    """Return a monotonic function of a value, with its interval."""
    low, high = sorted((figure(interval.low), figure(interval.high)))
    return interval.model_copy(update={"value": figure(interval.value), "low": low, "high": high})
