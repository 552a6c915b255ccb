"""The gradient noise scale of a task, and the batch beyond which more workers stop paying (McCandlish et al. 2018).

A gradient over a batch of B samples has the expected squared norm |G|² + tr(Σ)/B. Measured at two batch sizes, that
gives unbiased estimates of |G|² and tr(Σ); their ratio is the simple noise scale, a number of samples. The larger batch
here is all samples of one measurement, the smaller is one of the pieces in which they are computed. Samples are drawn
with replacement, so that the formula holds for every size.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from manyhands import tasks
from manyhands.errors import Diverged
from manyhands.launch.base import Observer
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.replica import Batch
from manyhands.replica.random import mix_key
from manyhands.request import resolve
from manyhands.run import ignore, preflight
from manyhands.tasks import Task
from manyhands.tasks.load import name_of
from manyhands.tasks.setup import device_of
from manyhands.training.journal import pulse_of
from manyhands.training.meter import TimeSplit
from manyhands.virtual.courses import OneWorker, for_small

Floats = npt.NDArray[np.float64]

GROUPS = 16
"""Groups of a measurement's samples; the jackknife leaves out one at a time."""
SAMPLES = 4096
"""Samples of one measurement."""
LEVEL = 0.9
"""Coverage of the confidence intervals."""


class GradientNoise(NamedTuple):
    """Noise of the gradient at one step of a training, estimated from two batch sizes."""

    gradient_square: float
    """|G|², unbiased: it may come out below 0 where G is small and the samples are few."""
    variance: float
    """tr(Σ), the variance of one sample's gradient, summed over the weights; unbiased."""
    scale: float | None
    """tr(Σ) / |G|², in samples; None where |G|² did not come out above 0."""
    low: float
    """Lower end of the scale's confidence interval."""
    high: float | None
    """Its upper end; None where |G|² may be 0."""

    @property
    def critical_batch(self) -> float:
        """The batch at which a run takes twice its fewest steps, and twice its fewest samples: the noise scale, or its
        lower bound where no more is known."""
        return self.low if self.scale is None else self.scale

    @property
    def sentence(self) -> str:
        """The critical batch in words."""
        if self.scale is None:
            return (
                f"The gradient is so noisy that the samples looked at give only a lower bound of its noise scale, "
                f"{self.low:,.0f}: up to a global batch of that size at least, more workers pay."
            )
        between = f"at least {self.low:,.0f}" if self.high is None else f"{self.low:,.0f} to {self.high:,.0f}"
        return (
            f"The gradient's noise scale is about {self.scale:,.0f} samples ({between}). Up to a global batch of that "
            f"size more workers pay; there a run takes about twice its minimum number of steps, and a batch twice as "
            f"large would save a quarter of them for half as much work again."
        )


def noise_scale(
    task: str | Task,
    *,
    points: int = 7,
    samples: int = SAMPLES,
    small_rows: int = 16,
    observe: Observer = ignore,
    **options: Any,
) -> list[GradientNoise]:
    """Train one worker with the `options` of `manyhands train`; return its gradient noise at `points` equally spaced
    steps, of which the last is the end of the run, each from about `samples` samples in pieces of `small_rows`."""
    loaded = tasks.load(task) if isinstance(task, str) else task
    name = task if isinstance(task, str) else name_of(task)
    config = resolve(name, {**options, "engine": "serial", "workers": 1, "sync": "allreduce"}, loaded)
    device = device_of(config, 0)
    course = OneWorker(loaded, config, preflight(config, loaded).data.to(device), device)
    shape = (GROUPS, samples // (GROUPS * small_rows), small_rows)
    with process_settings(for_small(config, course.replica, course.plan.batch_size), 1, facts.cores()):
        return list(_measure_along(course, points, shape, observe))


def _measure_along(
    course: OneWorker, points: int, shape: tuple[int, int, int], observe: Observer
) -> Iterator[GradientNoise]:
    """Train to the end, and yield the gradient noise at equally spaced steps."""
    plan, step, begun_s = course.plan, 0, time.perf_counter()
    for stop in sorted({math.ceil(plan.steps * i / points) for i in range(1, points + 1)}):
        for steps in course.parts(step, stop):
            losses = course.run(steps)
            step = steps.stop
            _check_finite(losses[-1], step)
            split = TimeSplit(train_s=time.perf_counter() - begun_s)
            observe(pulse_of(plan, step, sum(losses) / len(losses), None, split))
        yield _measure(course, shape, step)


def _measure(course: OneWorker, shape: tuple[int, int, int], step: int) -> GradientNoise:
    """Estimate the gradient noise at the present weights, which stay as they are; `shape` is groups, pieces, rows."""
    replica, split, seed = course.replica, course.plan.split, course.plan.config.seed
    groups, pieces, small_rows = shape
    num_weights = replica.update.num_weights
    rows = torch.randint(len(split), shape, generator=torch.Generator().manual_seed(mix_key(seed, step) >> 1))
    sums = replica.grads.new_zeros(groups, num_weights)
    squares, losses = np.zeros(groups), 0.0
    for g, group in enumerate(rows):
        for i, piece in enumerate(group):
            x, y = split.batch(piece, replica.params.dtype)
            losses += float(replica.forward_backward(Batch(x, y, key=mix_key(seed, step, g, i)), 1.0))
            sums[g] += replica.grads[:num_weights]
            squares[g] += float(replica.grads[:num_weights].double().square().sum())
    _check_finite(losses, step)
    means = sums.double().cpu() / pieces
    return estimate((means @ means.T).numpy(), squares / pieces, small_rows, pieces * small_rows)


def estimate(products: Floats, small_squares: Floats, small_rows: int, group_rows: int) -> GradientNoise:
    """Estimate the noise from the inner products of the groups' mean gradients, and from the mean squared norm of the
    small batches' gradients in each group; the interval comes from a jackknife over the groups."""
    num = len(products)
    square, variance = _unbiased(products.mean(), small_squares.mean(), small_rows, num * group_rows)
    left_out = []
    for i in range(num):
        keep = np.delete(np.arange(num), i)
        others = products[np.ix_(keep, keep)].mean()
        left_out.append(_unbiased(others, small_squares[keep].mean(), small_rows, (num - 1) * group_rows))
    covariance = (num - 1) ** 2 / num * np.cov(np.array(left_out).T)
    low, high = _ratio_interval(variance, square, covariance[::-1, ::-1], num - 1)
    return GradientNoise(square, variance, variance / square if square > 0 else None, low, high)


def _unbiased(large_square: float, small_square: float, small: int, large: int) -> tuple[float, float]:
    """Return |G|² and tr(Σ), from the squared norms of gradients over `small` and over `large` samples."""
    square = (large * large_square - small * small_square) / (large - small)
    return float(square), float((small_square - large_square) / (1 / small - 1 / large))


def _ratio_interval(over: float, under: float, covariance: Floats, freedom: int) -> tuple[float, float | None]:
    """Return the confidence interval of over / under (Fieller 1954); no upper end where `under` may be 0."""
    t2 = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) ** 2
    a = under**2 - t2 * float(covariance[1, 1])
    b = under * over - t2 * float(covariance[0, 1])
    c = over**2 - t2 * float(covariance[0, 0])
    if c <= 0 or b * b < a * c:
        return 0.0, (b + math.sqrt(max(0.0, b * b - a * c))) / a if a > 0 else None
    root = math.sqrt(b * b - a * c)
    return (c / (b + root) if b + root > 0 else 0.0), ((b + root) / a if a > 0 else None)


def _check_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise Diverged(f"the loss became {loss} by step {step}; try a smaller --lr, or look at the data")


def median_noise(noise: Sequence[GradientNoise]) -> GradientNoise:
    """Return the point of a training that has the median noise scale."""
    by_scale = sorted(noise, key=lambda point: math.inf if point.scale is None else point.scale)
    return by_scale[len(by_scale) // 2]
