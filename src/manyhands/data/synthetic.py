"""Generated samples: one Gaussian cluster around a centre for each class."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from manyhands.data.memory import check_fits
from manyhands.data.split import Dataset, Split
from manyhands.errors import check
from manyhands.spec import build

MAX_VALUES = 1 << 33


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Synthetic:
    """The options of `synthetic:…`."""

    samples: int = 10_000
    """Training samples."""

    features: int = 784
    """Values of one sample."""

    classes: int = 10
    """Classes, each with its own centre."""

    test: int = 2_000
    """Test samples."""

    noise: float = 1.0
    """Standard deviation of the samples around their centre, in that of the centres."""

    seed: int = 0
    """What the centres and samples are drawn from."""

    shape: str = ""
    """Shape of one sample instead of `features`, such as 1x28x28 for images."""

    def __post_init__(self) -> None:
        for name, least in {"samples": 1, "features": 1, "classes": 2, "test": 1, "seed": 0}.items():
            value = getattr(self, name)
            check(value >= least, f"{name} of synthetic must be at least {least}, got {value}")
        check(
            math.isfinite(self.noise) and self.noise >= 0,
            f"noise of synthetic must be a number from 0 up, got {self.noise}",
        )
        check(
            not self.shape or re.fullmatch(r"[1-9][0-9]{0,9}x[1-9][0-9]{0,9}x[1-9][0-9]{0,9}", self.shape) is not None,
            f"shape of synthetic must be CHANNELSxHEIGHTxWIDTH, such as 1x28x28, got '{self.shape}'",
        )
        rows = self.samples + self.test + self.classes
        check(
            rows * math.prod(self.sample_shape) <= MAX_VALUES,
            f"synthetic would hold {rows * math.prod(self.sample_shape)} values, but at most {MAX_VALUES} "
            f"are allowed; ask for fewer samples or features",
        )
        needed = rows * math.prod(self.sample_shape) * np.float32().itemsize
        check_fits(needed, "synthetic", "ask for fewer samples or features")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample."""
        return tuple(map(int, self.shape.split("x"))) if self.shape else (self.features,)


def load_synthetic(options: Mapping[str, str]) -> Dataset:
    """Generate a dataset; fewer samples of the same seed are the first ones of more."""
    check(not {"shape", "features"} <= options.keys(), "give synthetic either features or shape, not both")
    wanted = build(Synthetic, options, "synthetic")
    centres = _stream(wanted, 0).standard_normal((wanted.classes, *wanted.sample_shape), np.float32)
    return Dataset(
        name="synthetic",
        train=_clusters(wanted, centres, wanted.samples, stream=1),
        test=_clusters(wanted, centres, wanted.test, stream=3),
        classes=wanted.classes,
    )


def _clusters(
    wanted: Synthetic, centres: np.ndarray[tuple[int, ...], np.dtype[np.float32]], n: int, *, stream: int
) -> Split:
    # Labels and noise have a stream each, so that the first samples do not depend on how many follow.
    labels = _stream(wanted, stream).integers(wanted.classes, size=n)
    x = _stream(wanted, stream + 1).standard_normal((n, *wanted.sample_shape), np.float32)
    x *= np.float32(wanted.noise)
    x += centres[labels]
    return Split(torch.from_numpy(x), torch.from_numpy(labels))


def _stream(wanted: Synthetic, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([wanted.seed, number])))
