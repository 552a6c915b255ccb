"""The noise of a gradient, on problems whose noise is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyhands import Dataset, Task
from manyhands.advice.noise_scale import GROUPS, GradientNoise, estimate, median_noise, noise_scale
from manyhands.data import Split

SMALL, PIECES = 4, 8


def _gradients(true: np.ndarray, deviation: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the gradients of small batches; return what `estimate` wants to know of them."""
    random = np.random.default_rng(seed)
    small = true + deviation / math.sqrt(SMALL) * random.standard_normal((GROUPS, PIECES, len(true)))
    means = small.mean(1)
    return means @ means.T, (small**2).sum(2).mean(1)


def test_estimates_are_unbiased_and_their_intervals_hold() -> None:
    true, deviation = np.full(50, 0.2), 2.0
    square, variance = float(true @ true), len(true) * deviation**2
    found = [estimate(*_gradients(true, deviation, seed), SMALL, SMALL * PIECES) for seed in range(400)]
    for name, expected in (("gradient_square", square), ("variance", variance)):
        values = np.array([getattr(each, name) for each in found])
        assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(len(values)), name
    scale = variance / square
    held = np.mean([each.low <= scale <= (math.inf if each.high is None else each.high) for each in found])
    assert 0.85 <= held <= 0.97


def test_without_a_gradient_the_noise_has_no_upper_end() -> None:
    found = [estimate(*_gradients(np.zeros(50), 1.0, seed), SMALL, SMALL * PIECES) for seed in range(100)]
    assert np.mean([each.high is None for each in found]) > 0.9
    assert np.mean([each.scale is None for each in found]) == pytest.approx(0.5, abs=0.2)
    assert all(each.low >= 0 for each in found)


def test_without_noise_the_scale_is_nothing() -> None:
    found = estimate(*_gradients(np.ones(5), 0.0, 0), SMALL, SMALL * PIECES)
    assert found.scale == pytest.approx(0, abs=1e-12)
    assert found.high == pytest.approx(0, abs=1e-6)


class Shift(nn.Module):
    """Gives x - w: with half its square as the loss, a sample's gradient in w is w - x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.w


def _half_square(out: Tensor, y: Tensor) -> Tensor:
    return out.square().sum(1).mean() / 2


def _shifts() -> Dataset:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(1)) * 3 + 1
    split = Split(x, torch.zeros(200, dtype=torch.int64))
    return Dataset("shifts", split, split, 1)


shifts = Task(model=lambda data: Shift(6), data=_shifts, loss=_half_square, lr=0.05, batch_size=20)


def test_a_task_with_known_noise() -> None:
    """The variance of a sample's gradient is that of x, wherever w is; the gradient is w minus the mean of x."""
    found = noise_scale(shifts, points=3, samples=4096, small_rows=8, steps=10, dtype="float64")
    x = _shifts().train.x.double()
    assert len(found) == 3
    w = torch.zeros(6, dtype=torch.float64)
    for point in found:
        assert point.variance == pytest.approx(float(x.var(0, correction=0).sum()), rel=0.1)
    squares = [point.gradient_square for point in found]
    assert squares == sorted(squares, reverse=True)
    first = noise_scale(shifts, points=1, samples=8192, small_rows=8, steps=1, lr=0.0, dtype="float64")[0]
    expected = float(x.var(0, correction=0).sum() / (w - x.mean(0)).square().sum())
    assert first.high is not None
    assert first.low <= expected <= first.high
    assert first.high < 1.5 * first.low


def test_looking_changes_nothing(tiny: Callable[[str], str]) -> None:
    few = noise_scale(tiny("adam"), points=1, samples=512, small_rows=4, epochs=2)
    many = noise_scale(tiny("adam"), points=5, samples=512, small_rows=4, epochs=2)
    assert many[-1] == few[-1]


def _noise(scale: float | None) -> GradientNoise:
    return (
        GradientNoise(1.0, 1.0, None, 10.0, None) if scale is None else GradientNoise(1, 1, scale, scale / 2, scale * 2)
    )


def test_the_critical_batch_is_the_scale_in_the_middle() -> None:
    found = median_noise([_noise(scale) for scale in (4000.0, 1000.0, None)])
    assert (found.scale, found.low, found.high) == (4000, 2000, 8000)
    assert found.critical_batch == 4000
    assert "about 4,000 samples (2,000 to 8,000)" in found.sentence
    unknown = median_noise([_noise(scale) for scale in (None, 7.0, None)])
    assert (unknown.scale, unknown.low, unknown.high) == (None, 10, None)
    assert unknown.critical_batch == 10
    assert "only a lower bound of its noise scale, 10:" in unknown.sentence
