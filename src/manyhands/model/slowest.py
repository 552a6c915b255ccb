"""The maximum of p draws: the time of a step that waits for all p ranks, from samples of one rank's steps.

The expected maximum of p draws from m samples is known exactly, but it never exceeds the largest sample. The largest
samples are therefore replaced by a fitted tail: generalised Pareto by probability-weighted moments (Hosking and Wallis
1987), or exponential unless the fitted shape differs significantly. The tail keeps the mean of the samples it replaces.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaln, ndtr

from manyhands.model.cluster import Cluster
from manyhands.model.links import Floats

SIGNIFICANT = 2.0
"""Standard errors by which the tail's shape must differ from 0 for the tail not to be exponential."""
SHAPES = (-1.0, 0.25)
"""Bounds of the shape: from the uniform distribution's to the heaviest that samples of a minute could support."""
CHUNK = 1024
"""Values of p evaluated at once, to bound memory."""


def correlated_levels(random: np.random.Generator, shape: tuple[int, int], correlation: float) -> Floats:
    """Draw uniform levels in [0, 1) that are correlated within each row (Gaussian copula)."""
    if correlation == 0:
        return random.random(shape)
    common, independent = random.standard_normal((shape[0], 1)), random.standard_normal(shape)
    levels: Floats = ndtr(correlation**0.5 * common + (1 - correlation) ** 0.5 * independent)
    return np.minimum(levels, np.nextafter(1.0, 0.0))


@final
@dataclass(frozen=True)
class Slowest:
    """The distribution of a step's time: empirical up to a threshold, a fitted tail above."""

    body_s: Floats
    """The sorted samples up to the threshold, which is the last of them."""
    tail_share: float
    """Probability of the tail."""
    scale_s: float
    shape: float
    """ξ of the tail: exponential at 0, bounded below 0."""

    @classmethod
    def of(cls, samples_s: npt.ArrayLike) -> "Slowest":
        """Fit to m ≥ 1 samples; the largest 2√m of them become the tail."""
        ordered = np.sort(np.asarray(samples_s, dtype=np.float64).ravel())
        assert len(ordered)
        assert np.isfinite(ordered).all()
        num_tail = min(len(ordered) // 2, round(2 * len(ordered) ** 0.5))
        body, tail = np.split(ordered, [len(ordered) - num_tail])
        scale, shape = _fit_tail(tail - body[-1])
        return cls(body, num_tail / len(ordered), scale, shape)

    def expected_s(self, p: npt.ArrayLike) -> Floats:
        """Return the expected maximum of p draws, which for p = 1 is the mean of the samples."""
        ranks = np.asarray(p, dtype=np.int64)
        assert (ranks >= 1).all()
        sizes, places = np.unique(ranks, return_inverse=True)
        seconds: Floats = self._body_part(sizes) + self._tail_part(sizes)
        return seconds[places].reshape(ranks.shape)

    def expected_on_s(self, cluster: Cluster, p: npt.ArrayLike) -> Floats:
        """Return the expected maximum over the first p ranks of `cluster`, whose nodes may be slow.

        Ranks of equal slowness form a class, and the class with the largest expectation counts alone: slightly below
        the true value where two classes are almost equally slow.
        """
        ranks = np.asarray(p, dtype=np.int64)
        of_factor = {1.0: ranks.copy()}
        for node in cluster.slow:
            here = np.clip(ranks - node.node * cluster.node_size, 0, cluster.node_size)
            of_factor[1.0] = of_factor[1.0] - here
            of_factor[node.factor] = of_factor.get(node.factor, 0) + here
        classes = [
            np.where(count > 0, factor * self.expected_s(np.maximum(count, 1)), 0.0)
            for factor, count in of_factor.items()
        ]
        return np.asarray(np.max(classes, axis=0) / cluster.core_speed)

    def quantile_s(self, level: npt.ArrayLike, p: npt.ArrayLike = 1) -> Floats:
        """Return the quantile of the maximum of p draws at `level`, which is below 1."""
        probability = np.asarray(level, dtype=np.float64)
        assert ((probability >= 0) & (probability < 1)).all()
        # Far in the tail `level ** (1 / p)` rounds to 1, while its distance from 1 keeps its precision.
        with np.errstate(divide="ignore"):
            above = -np.expm1(np.log(probability) / np.asarray(p))
        place = np.floor((1 - above) / (1 - self.tail_share) * len(self.body_s)).astype(np.int64)
        body: Floats = self.body_s[np.clip(place, 0, len(self.body_s) - 1)]
        if self.tail_share == 0:
            return body
        odds = np.minimum(above / self.tail_share, 1)
        excess = -np.log(odds) if self.shape == 0 else np.expm1(-self.shape * np.log(odds)) / self.shape
        return np.where(above < self.tail_share, self.body_s[-1] + self.scale_s * excess, body)

    def _body_part(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Sum sample × probability that it is the maximum, a difference of two powers of cumulative shares."""
        log_share = np.log(np.arange(1, len(self.body_s) + 1) * (1 - self.tail_share) / len(self.body_s))
        weights = np.append(-np.diff(self.body_s), self.body_s[-1])
        blocks = np.split(sizes, range(CHUNK, len(sizes), CHUNK))
        return np.concatenate([np.exp(np.outer(block, log_share)) @ weights for block in blocks])

    def _tail_part(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Integrate the tail's quantiles over Z < tail_share; Z, the probability above the maximum, is Beta(1, p)."""
        in_tail = -np.expm1(sizes * np.log1p(-self.tail_share))
        if self.shape == 0:
            # E[−log(Z / tail_share); Z < tail_share] = Σ (1 − (1 − tail_share)^k) / k for k = 1 … p.
            k = np.arange(1, sizes.max() + 1)
            excess = np.cumsum(-np.expm1(k * np.log1p(-self.tail_share)) / k)[sizes - 1]
        else:
            a = 1 - self.shape
            power = np.exp(np.log(sizes) + betaln(a, sizes) + self.shape * np.log(self.tail_share))
            excess = (power * betainc(a, sizes, self.tail_share) - in_tail) / self.shape
        seconds: Floats = self.body_s[-1] * in_tail + self.scale_s * excess
        return seconds


def _fit_tail(excess_s: Floats) -> tuple[float, float]:
    """Return scale and shape of the generalised Pareto tail that has the mean of the sorted `excess_s`."""
    num = len(excess_s)
    mean = float(excess_s.mean()) if num else 0.0
    if mean == 0:
        return 0.0, 0.0
    above = 1 - (np.arange(1, num + 1) - 0.35) / num
    shape = 2 - mean / (mean - 2 * float((above * excess_s).mean()))
    standard_error = (4 / 3 / num) ** 0.5
    shape = float(np.clip(shape, *SHAPES)) if abs(shape) > SIGNIFICANT * standard_error else 0.0
    return mean * (1 - shape), shape
