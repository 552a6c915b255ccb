"""Generated samples: one Gaussian cluster around a centre for each class."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from manyhands.data.memory import check_size
from manyhands.data.order import generator
from manyhands.data.split import Dataset, Split
from manyhands.errors import check
from manyhands.spec import build


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
    """Seed of the centres and samples."""
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
        values = (self.samples + self.test + self.classes) * math.prod(self.sample_shape)
        check_size(values, np.float32().itemsize, "synthetic", "ask for fewer samples or features")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(map(int, self.shape.split("x"))) if self.shape else (self.features,)


def load_synthetic(options: Mapping[str, str]) -> Dataset:
    """Generate a dataset; fewer samples of the same seed are the first ones of more."""
    check(not {"shape", "features"} <= options.keys(), "give synthetic either features or shape, not both")
    given = build(Synthetic, options, "synthetic")
    centres = generator(given.seed, 0).standard_normal((given.classes, *given.sample_shape), np.float32)

    def clusters(n: int, stream: int) -> Split:
        # Labels and noise have a stream each, so that the first samples do not depend on how many follow.
        labels = generator(given.seed, stream).integers(given.classes, size=n)
        x = generator(given.seed, stream + 1).standard_normal((n, *given.sample_shape), np.float32)
        x *= np.float32(given.noise)
        x += centres[labels]
        return Split(torch.from_numpy(x), torch.from_numpy(labels))

    return Dataset(
        name="synthetic", train=clusters(given.samples, 1), test=clusters(given.test, 3), classes=given.classes
    )
