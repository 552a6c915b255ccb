"""The slowest of p: how long a step takes that waits for every rank, from samples of one rank's steps.

Of p draws from m samples the expected slowest is known exactly, but never above the slowest sample. So the largest
samples are replaced by a tail fitted to them: generalised Pareto, by probability-weighted moments (Hosking and Wallis
1987), and the exponential among these unless the samples tell another shape clearly. The tail keeps their mean.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaln, ndtr

from manyhands.model.links import Floats

CLEARLY = 2.0
"""Standard errors by which a tail's shape must differ from the exponential's to be taken for another."""
SHAPES = (-1.0, 0.25)
"""From the uniform distribution's to one that is heavier than any that samples of a minute could prove."""
ROWS = 1024
"""Numbers of ranks worked on at once, to bound memory."""


def like_levels(random: np.random.Generator, shape: tuple[int, int], persistence: float) -> Floats:
    """Draw levels from 0 to 1 of which those of a row are correlated: a normal copula."""
    if persistence == 0:
        return random.random(shape)
    of_row, own = random.standard_normal((shape[0], 1)), random.standard_normal(shape)
    levels: Floats = ndtr(persistence**0.5 * of_row + (1 - persistence) ** 0.5 * own)
    return np.minimum(levels, np.nextafter(1.0, 0.0))


@final
@dataclass(frozen=True)
class Slowest:
    """The distribution of a step's seconds: samples below a threshold, a fitted tail above."""

    body_s: Floats
    """The samples up to the threshold, in order; the last is the threshold."""
    tail_share: float
    """Probability of the tail."""
    scale_s: float
    shape: float
    """ξ of the tail: 0 is exponential, below that it has an end."""

    @classmethod
    def of(cls, samples_s: npt.ArrayLike) -> "Slowest":
        """Fit to samples, of which any number will do; the tail takes about two square roots of it."""
        ordered = np.sort(np.asarray(samples_s, dtype=np.float64).ravel())
        assert len(ordered)
        assert np.isfinite(ordered).all()
        num_tail = min(len(ordered) // 2, round(2 * len(ordered) ** 0.5))
        body, tail = np.split(ordered, [len(ordered) - num_tail])
        scale, shape = _fit_tail(tail - body[-1])
        return cls(body, num_tail / len(ordered), scale, shape)

    def expected_s(self, p: npt.ArrayLike) -> Floats:
        """Return the expected slowest of p draws; of one, it is the samples' mean."""
        asked = np.asarray(p, dtype=np.int64)
        assert (asked >= 1).all()
        sizes, places = np.unique(asked, return_inverse=True)
        found: Floats = self._body_part(sizes) + self._tail_part(sizes)
        return found[places].reshape(asked.shape)

    def quantile_s(self, level: npt.ArrayLike, p: npt.ArrayLike = 1) -> Floats:
        """Return what the slowest of p draws stays below with this probability, which is less than 1."""
        probability = np.asarray(level, dtype=np.float64)
        assert ((probability >= 0) & (probability < 1)).all()
        # Far in the tail a probability rounds to 1, where its distance from 1 still tells.
        with np.errstate(divide="ignore"):
            above = -np.expm1(np.log(probability) / np.asarray(p))
        place = np.floor((1 - above) / (1 - self.tail_share) * len(self.body_s)).astype(np.int64)
        body: Floats = self.body_s[np.clip(place, 0, len(self.body_s) - 1)]
        if self.tail_share == 0:
            return body
        odds = np.minimum(above / self.tail_share, 1)
        excess = -np.log(odds) if self.shape == 0 else np.expm1(-self.shape * np.log(odds)) / self.shape
        return np.where(above < self.tail_share, self.body_s[-1] + self.scale_s * excess, body)

    def draw_s(self, random: np.random.Generator, shape: int | tuple[int, ...], p: npt.ArrayLike = 1) -> Floats:
        """Draw the slowest of p; with p = 1, steps of a rank."""
        return self.quantile_s(random.random(shape), p)

    def draw_rows_s(self, random: np.random.Generator, rows: int, steps: int, persistence: float) -> Floats:
        """Draw rows of steps that follow each other: where one is slow, so may be the others of its row."""
        return self.quantile_s(like_levels(random, (rows, steps), persistence))

    def _body_part(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Sum sample × probability that it is the slowest, which is a difference of two powers of shares."""
        log_share = np.log(np.arange(1, len(self.body_s) + 1) * (1 - self.tail_share) / len(self.body_s))
        weights = np.append(-np.diff(self.body_s), self.body_s[-1])
        blocks = np.split(sizes, range(ROWS, len(sizes), ROWS))
        return np.concatenate([np.exp(np.outer(block, log_share)) @ weights for block in blocks])

    def _tail_part(self, sizes: npt.NDArray[np.int64]) -> Floats:
        """Integrate the tail's quantiles over Z < share, where Z, the share above the slowest, is Beta(1, p)."""
        in_tail = -np.expm1(sizes * np.log1p(-self.tail_share))
        if self.shape == 0:
            excess = _harmonic_in_tail(sizes, self.tail_share)
        else:
            a = 1 - self.shape
            power = np.exp(np.log(sizes) + betaln(a, sizes) + self.shape * np.log(self.tail_share))
            excess = (power * betainc(a, sizes, self.tail_share) - in_tail) / self.shape
        found: Floats = self.body_s[-1] * in_tail + self.scale_s * excess
        return found


def _harmonic_in_tail(sizes: npt.NDArray[np.int64], share: float) -> Floats:
    """Return Σ (1 − (1 − share)^k) / k for k to p, the expected −log(Z / share) where Z < share."""
    k = np.arange(1, sizes.max() + 1)
    total: Floats = np.cumsum(-np.expm1(k * np.log1p(-share)) / k)
    return total[sizes - 1]


def _fit_tail(excess_s: Floats) -> tuple[float, float]:
    """Return the scale and shape of a generalised Pareto tail with the mean of these excesses, given in order."""
    num = len(excess_s)
    mean = float(excess_s.mean()) if num else 0.0
    if mean == 0:
        return 0.0, 0.0
    above = 1 - (np.arange(1, num + 1) - 0.35) / num
    shape = 2 - mean / (mean - 2 * float((above * excess_s).mean()))
    standard_error = (4 / 3 / num) ** 0.5
    shape = float(np.clip(shape, *SHAPES)) if abs(shape) > CLEARLY * standard_error else 0.0
    return mean * (1 - shape), shape
