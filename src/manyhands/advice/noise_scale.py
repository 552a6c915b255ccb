"""The noise of a task's gradient, and the batch beyond which more workers stop paying (McCandlish et al. 2018).

A gradient over a batch of B samples has the expected square |G|² + tr(Σ)/B. Measured at two sizes of batch, that gives
unbiased estimates of |G|² and tr(Σ); their ratio is the simple noise scale, a number of samples. The larger batch here
is all samples of a point, the smaller is one of the pieces in which they are computed. Samples are drawn with
replacement, since then the formula holds for every size.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from manyhands import tasks
from manyhands.config import RunConfig
from manyhands.data import Split
from manyhands.errors import Diverged, check
from manyhands.launch.base import Observer
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.record.virtual import NoisePoint, NoiseRecord
from manyhands.replica import Batch, Replica
from manyhands.replica.random import mix_key
from manyhands.request import resolve
from manyhands.run import ignore, preflight
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.tasks.setup import device_of
from manyhands.training.journal import pulse_of
from manyhands.training.meter import TimeSplit
from manyhands.virtual.courses import OneWorker, for_small

Floats = npt.NDArray[np.float64]

GROUPS = 16
"""Parts of a point's samples that are left out in turn, to see how sure the estimate is."""
LEVEL = 0.9


class GradientNoise(NamedTuple):
    """What the gradients of two sizes of batch tell."""

    gradient_square: float
    variance: float
    scale: float | None
    low: float
    high: float | None


def noise_scale(
    task: str | Task,
    *,
    points: int = 4,
    samples: int = 8192,
    small_rows: int = 16,
    observe: Observer = ignore,
    **options: Any,
) -> NoiseRecord:
    """Train one worker with the options of `manyhands train`, and look at its gradient at some points on the way.

    The points divide the run evenly, and the last is its end; at each, so many samples are looked at.
    """
    check_not_importing()
    check(points >= 1, f"points must be at least 1, got {points}")
    check(small_rows >= 1, f"small-rows must be at least 1, got {small_rows}")
    least = 2 * GROUPS * small_rows
    check(samples >= least, f"samples must be at least {least}, for {GROUPS} groups of two pieces, got {samples}")
    own = tasks.load(task) if isinstance(task, str) else task
    name = task if isinstance(task, str) else name_of(task)
    config = resolve(name, {**options, "engine": "serial", "workers": 1, "sync": "allreduce"}, own)
    begun, ready = time.perf_counter(), preflight(config, own)
    device = device_of(config, 0)
    course = OneWorker(own, config, ready.data.to(device), device)
    sizes = _Sizes(small_rows, samples // (GROUPS * small_rows))
    with process_settings(for_small(config, course.replica, course.plan.batch_size), 1, facts.cores()):
        found = list(_points(course, points, sizes, observe))
    return NoiseRecord(
        task=config.task,
        batch_size=course.plan.batch_size,
        small_rows=small_rows,
        large_rows=sizes.group_rows * GROUPS,
        points=found,
        seed=config.seed,
        wall_s=time.perf_counter() - begun,
        config=config,
    )


class _Sizes(NamedTuple):
    small_rows: int
    pieces: int
    """In a group."""

    @property
    def group_rows(self) -> int:
        return self.small_rows * self.pieces


def _points(course: OneWorker, points: int, sizes: _Sizes, observe: Observer) -> Iterator[NoisePoint]:
    plan, step, begun = course.plan, 0, time.perf_counter()
    for stop in sorted({math.ceil(plan.steps * i / points) for i in range(1, points + 1)}):
        for steps in course.parts(step, stop):
            losses = course.run(steps)
            step = steps.stop
            _check_finite(losses[-1], step)
            split = TimeSplit(train_s=time.perf_counter() - begun)
            observe(pulse_of(plan, step, sum(losses) / len(losses), None, split))
        yield _look(course.replica, plan.split, sizes, plan.config, step, step / plan.steps_per_epoch)


def _look(replica: Replica, split: Split, sizes: _Sizes, config: RunConfig, step: int, epoch: float) -> NoisePoint:
    """Estimate the noise of the gradient with the weights as they are, which stay so."""
    shape, count = (GROUPS, sizes.pieces, sizes.small_rows), replica.update.num_weights
    rows = torch.randint(len(split), shape, generator=torch.Generator().manual_seed(mix_key(config.seed, step) >> 1))
    sums = replica.grads.new_zeros(GROUPS, count)
    squares, losses = np.zeros(GROUPS), 0.0
    for g, group in enumerate(rows):
        for i, piece in enumerate(group):
            x, y = split.batch(piece, replica.params.dtype)
            key = mix_key(config.seed, step, g, i)
            losses += float(replica.forward_backward(Batch(x, y, key=key), 1.0))
            sums[g] += replica.grads[:count]
            squares[g] += float(replica.grads[:count].double().square().sum())
    _check_finite(losses, step)
    means = sums.double().cpu() / sizes.pieces
    found = estimate((means @ means.T).numpy(), squares / sizes.pieces, sizes.small_rows, sizes.group_rows)
    return NoisePoint(step=step, epoch=epoch, loss=losses / (GROUPS * sizes.pieces), **found._asdict())


def estimate(products: Floats, small_squares: Floats, small_rows: int, group_rows: int) -> GradientNoise:
    """Estimate from the products of the groups' mean gradients, and the mean squares of their small batches' ones."""
    num = len(products)
    whole = _unbiased(products.mean(), small_squares.mean(), small_rows, num * group_rows)
    left_out = []
    for i in range(num):
        keep = np.delete(np.arange(num), i)
        others = products[np.ix_(keep, keep)].mean()
        left_out.append(_unbiased(others, small_squares[keep].mean(), small_rows, (num - 1) * group_rows))
    covariance = (num - 1) ** 2 / num * np.cov(np.array(left_out).T)
    square, variance = whole
    low, high = _ratio_interval(variance, square, covariance[::-1, ::-1], num - 1)
    return GradientNoise(square, variance, variance / square if square > 0 else None, low, high)


def _unbiased(large_square: float, small_square: float, small: int, large: int) -> tuple[float, float]:
    """Return |G|² and tr(Σ), from the squares of gradients over two sizes of batch."""
    square = (large * large_square - small * small_square) / (large - small)
    return float(square), float((small_square - large_square) / (1 / small - 1 / large))


def _ratio_interval(over: float, under: float, covariance: Floats, freedom: int) -> tuple[float, float | None]:
    """Return where over / under lies (Fieller 1954); without an upper end where `under` may be 0."""
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


@final
@dataclass(frozen=True)
class CriticalBatch:
    """The batch at which a run takes twice its fewest steps, and twice its fewest samples."""

    rows: float | None
    """None where it is only known to be more than `low`."""
    low: float
    high: float | None
    sentence: str


def critical_batch(noise: NoiseRecord) -> CriticalBatch:
    """Return the batch beyond which more workers stop paying: the noise scale that is in the middle of the points'."""
    by_scale = sorted(noise.points, key=lambda point: math.inf if point.scale is None else point.scale)
    middle = by_scale[len(by_scale) // 2]
    return CriticalBatch(middle.scale, middle.low, middle.high, _sentence(middle, noise.large_rows))


def _sentence(middle: NoisePoint, looked_at: int) -> str:
    if middle.scale is None:
        return (
            f"The gradient is so noisy that {looked_at:,} samples tell only that its noise scale is more than "
            f"{middle.low:,.0f}: up to a global batch of that size at least, more workers pay."
        )
    between = f"at least {middle.low:,.0f}" if middle.high is None else f"{middle.low:,.0f} to {middle.high:,.0f}"
    return (
        f"The gradient's noise scale is about {middle.scale:,.0f} samples ({between}). Up to a global batch of that "
        f"size more workers pay; there a run takes about twice the fewest steps it could, and a batch twice as large "
        f"would save a quarter of these for half as much work again."
    )
