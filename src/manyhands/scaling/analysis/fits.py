"""Fit laws of scaling to the runs of a series over the number of workers.

Amdahl 1967, for a problem of constant size, of which the share s is serial: S(n) = 1 / (s + (1 − s) / n).
Gustafson 1988, for a problem that grows with the workers: S(n) = n − s (n − 1).
The Universal Scalability Law of Gunther (1993, 2007): X(n) = λ n / (1 + σ (n − 1) + κ n (n − 1)), with contention σ for
work done one after the other, and coherency κ for pairwise exchange between workers; it has a peak.

A fit is least squares of the logarithms of samples per second, so that relative errors count the same everywhere, with
one speed for each repeat, so that a slow period of the machine, which all cells of a repeat share, cancels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares
from scipy.stats import t as student

from manyhands.measurement.stats import LEVELS
from manyhands.record.sweep import MOST_WORKERS, Cell, Fit, Interval, Kind
from manyhands.scaling.analysis.measured import Measured
from manyhands.scaling.analysis.rows import rates

Floats = npt.NDArray[np.float64]

SCALE = (0.05, 0.001)
"""Typical size of the parameters, where the search begins."""
NO_SPEED = 1e-9
"""Lower bound of speed-ups, which a law beyond its bounds may make negative."""
DRAWS = 2000
DRAWN_COVERAGE_PCT = 90.0
"""Coverage of intervals from 95 % of the draws: they hold in 95 % of cases where the noise is small, but in as few as
88 % where three worker counts and times with two humps hardly determine the law."""


@dataclass(frozen=True)
class ScalingLaw:
    """A law of scaling and its parameters."""

    name: Literal["amdahl", "gustafson", "usl"]
    parameters: tuple[str, ...]
    speed_up: Callable[..., Floats]
    """Function of the numbers of workers, and of each parameter."""
    most: float
    """Upper bound of the parameters; the lower one is 0."""
    needs: int
    """Least number of different worker counts that determine its parameters."""


def _amdahl(n: Floats, serial: Floats) -> Floats:
    return 1 / (serial + (1 - serial) / n)


def _gustafson(n: Floats, serial: Floats) -> Floats:
    return n - serial * (n - 1)


def _usl(n: Floats, contention: Floats, coherency: Floats) -> Floats:
    return n / (1 + contention * (n - 1) + coherency * n * (n - 1))


AMDAHL = ScalingLaw("amdahl", ("serial",), _amdahl, 1.0, 2)
GUSTAFSON = ScalingLaw("gustafson", ("serial",), _gustafson, 1.0, 2)
USL = ScalingLaw("usl", ("contention", "coherency"), _usl, math.inf, 3)
LAWS: dict[Kind, tuple[ScalingLaw, ...]] = {"strong": (AMDAHL, USL), "weak": (GUSTAFSON, USL)}


class Points(NamedTuple):
    """The data that a law is fitted to: one entry for each run."""

    workers: Floats
    log_rate: Floats
    """Logarithm of samples per second."""
    repeat: npt.NDArray[np.int64]


class Solution(NamedTuple):
    """The result of a fit."""

    parameters: Floats
    """Least-squares solution within the bounds."""
    centre: Floats
    """Least-squares solution without bounds: the same, unless the former is at a bound."""
    covariance: Floats
    """Covariance of `centre`, from the differences between repeats."""
    free: int
    """Degrees of freedom, one less than the repeats; 0 where a single one tells nothing of the noise."""
    residuals: Floats


def fits(measured: Measured) -> list[Fit]:
    """Fit the laws to every series with enough different worker counts that are not oversubscribed."""
    results = []
    for (series, baseline), members in _series(measured).items():
        points = _points(measured, [baseline, *members])
        for law in LAWS[measured.kind]:
            if len(np.unique(points.workers)) >= law.needs:
                results.append(_fit(law, points, series, baseline))
    return results


def _series(measured: Measured) -> dict[tuple[str, Cell], list[Cell]]:
    """Group the cells that a law may be fitted to by their series and baseline, in the order of the sweep."""
    groups: dict[tuple[str, Cell], list[Cell]] = {}
    for cell in measured.cells:
        baseline = measured.baseline(cell)
        if cell.role == "cell" and measured.good(baseline) and measured.ranks(cell) <= measured.cores:
            assert baseline
            groups.setdefault((cell.series, baseline), []).append(cell)
    return groups


def _points(measured: Measured, cells: list[Cell]) -> Points:
    runs = [(cell.size, math.log(rate), i) for cell in cells for i, rate in rates(measured, cell).items()]
    workers, log_rate, repeat = zip(*runs, strict=True)
    numbers = np.unique(np.array(repeat), return_inverse=True)[1]
    return Points(np.array(workers, dtype=float), np.array(log_rate), numbers)


def _fit(law: ScalingLaw, points: Points, series: str, baseline: Cell) -> Fit:
    solution = solve(law, points)
    parameters = dict(zip(law.parameters, intervals(law, solution), strict=True))
    best = None
    if law is USL:
        parameters["rate"] = _rate(law, points, solution)
        best = best_workers(solution)
    return Fit(
        law=law.name,
        series=series,
        batch_size=baseline.batch_size,
        image_size=baseline.image_size,
        parameters=parameters,
        best_workers=best,
        error_pct=float(np.sqrt(np.mean(np.expm1(solution.residuals) ** 2)) * 100),
    )


def solve(law: ScalingLaw, points: Points) -> Solution:
    """Return the least-squares parameters, within their bounds and without; each repeat has a speed of its own."""
    target = _centred(points.log_rate, points.repeat)

    def residuals(parameters: Floats) -> Floats:
        speed_up = np.maximum(law.speed_up(points.workers, *parameters), NO_SPEED)
        return target - _centred(np.log(speed_up), points.repeat)

    scale = SCALE[: len(law.parameters)]
    # dogbox ends exactly on a bound; the default method ends a little beside.
    bounded = least_squares(residuals, scale, bounds=(0, law.most), method="dogbox", x_scale=scale)
    beyond = least_squares(residuals, bounded.x, x_scale=scale) if bounded.active_mask.any() else bounded
    free = len(np.unique(points.repeat)) - 1
    return Solution(bounded.x, beyond.x, _covariance(beyond.jac, beyond.fun, points.repeat), free, bounded.fun)


def _covariance(jacobian: Floats, residuals: Floats, repeat: npt.NDArray[np.int64]) -> Floats:
    """Return the covariance of a least-squares solution by a jackknife that leaves out one repeat at a time.

    It supposes nothing of the runs within a repeat, which may be noisier the more workers they have. A step of Newton's
    method stands for the fit without a repeat.
    """
    numbers, whole = np.unique(repeat), jacobian.T @ jacobian
    changes = []
    for number in numbers:
        part = jacobian[repeat == number]
        changes.append(np.linalg.pinv(whole - part.T @ part) @ (part.T @ residuals[repeat == number]))
    differences = np.array(changes)
    scatter: Floats = (len(numbers) - 1) / len(numbers) * differences.T @ differences
    return scatter


def _centred(values: Floats, repeat: npt.NDArray[np.int64]) -> Floats:
    """Subtract the mean of each repeat: a law is fitted to the rest, since each repeat has a speed of its own."""
    return values - (np.bincount(repeat, values) / np.bincount(repeat))[repeat]


def intervals(law: ScalingLaw, solution: Solution) -> list[Interval]:
    """Return the parameters with 95 % intervals by Student's distribution, clipped to their bounds.

    For a solution at a bound the interval is that of the fit without bounds, clipped, which covers a true value within
    the bounds as often. The coverage of a single repeat is 0.
    """
    quantile = float(student.ppf(LEVELS[1] / 100, solution.free)) if solution.free else 0.0
    half = quantile * np.sqrt(np.diag(solution.covariance))
    low, high = (np.clip(solution.centre + side * half, 0, law.most) for side in (-1, 1))
    results = [_around(*bounds) for bounds in zip(solution.parameters, low, high, strict=True)]
    return results if solution.free else [result.model_copy(update={"coverage_pct": 0.0}) for result in results]


def _around(value: float, low: float, high: float, coverage_pct: float = 95.0) -> Interval:
    """Return an interval extended to include its value, which at a bound may lie outside."""
    bounds = {"low": float(min(low, value)), "high": float(max(high, value))}
    return Interval(value=float(value), **bounds, coverage_pct=coverage_pct)


def _draw(solution: Solution) -> Floats:
    """Draw parameters from the distribution of the fit, clipped at 0; one row for each parameter."""
    random = np.random.default_rng(0)
    centre = np.zeros(len(solution.parameters))
    normal = random.multivariate_normal(centre, solution.covariance, DRAWS, check_valid="ignore").T
    if solution.free:
        normal = normal * np.sqrt(solution.free / random.chisquare(solution.free, DRAWS))
    return np.maximum(solution.centre[:, None] + normal, 0)


def _drawn_coverage(solution: Solution) -> float:
    return DRAWN_COVERAGE_PCT if solution.free else 0.0


def _rate(law: ScalingLaw, points: Points, solution: Solution) -> Interval:
    """Return the samples per second of one worker; the interval includes the spread of repeats and of parameters."""
    speeds = points.log_rate - np.log(law.speed_up(points.workers, *solution.parameters))
    by_repeat = np.bincount(points.repeat, speeds) / np.bincount(points.repeat)
    repeats = len(by_repeat)
    likely = np.mean(points.log_rate) - np.log(law.speed_up(points.workers, *_draw(solution)[:, :, None])).mean(axis=1)
    if repeats > 1:
        spread = by_repeat.std(ddof=1) / math.sqrt(repeats)
        likely = likely + spread * np.random.default_rng(1).standard_t(repeats - 1, DRAWS)
    low, high = np.exp(np.percentile(likely, LEVELS))
    return _around(math.exp(speeds.mean()), low, high, _drawn_coverage(solution))


def best_workers(solution: Solution) -> Interval | None:
    """Return the number of workers from which on one more is no faster; None where there is none."""
    best, *_ = peaks(solution.parameters[:, None])
    if best >= MOST_WORKERS:
        return None
    low, high = np.percentile(peaks(_draw(solution)), LEVELS, method="nearest")
    return _around(best, low, high, _drawn_coverage(solution))


def peaks(parameters: Floats) -> Floats:
    """Return the first n with X(n + 1) ≤ X(n) by the Universal Scalability Law, for each column of parameters.

    X(n + 1) > X(n) means n (n + 1) < (1 − σ) / κ.
    """
    contention, coherency = parameters
    room = np.maximum(1 - contention, 0) / np.maximum(coherency, 1e-300)
    peak: Floats = np.clip(np.ceil((np.sqrt(1 + 4 * room) - 1) / 2), 1, MOST_WORKERS)
    return peak
