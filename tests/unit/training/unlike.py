"""Tasks whose data or weights are drawn when they are made: seeded by manyhands, or beyond its reach."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyhands import Dataset, Split, Task


def dataset(draw: Callable[..., Any]) -> Dataset:
    x = draw(60, 4).astype(np.float32)
    y = (x.sum(1) > 0).astype(int)
    return Dataset("drawn", Split(x[:50], y[:50]), Split(x[50:], y[50:]), 2)


def from_process_wide() -> Dataset:
    scale, shift = random.random(), float(torch.rand(()))
    return dataset(lambda *shape: np.random.standard_normal(shape) * scale + shift)


def from_the_system() -> Dataset:
    return dataset(lambda *shape: np.random.default_rng().standard_normal(shape))


class Projected(nn.Module):
    """Holds a fixed random projection."""

    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__()
        projection = torch.from_numpy(generator.standard_normal((4, 6)).astype(np.float32))
        self.register_buffer("projection", projection, persistent=False)
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x @ self.projection)
        return out


network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
"""Its weights are drawn while the file is imported, by each rank on its own."""

seeded = Task(model=network, data=from_process_wide, batch_size=10, lr=0.1)
at_import = Task(model=lambda data: nn.Linear(4, 2), data=from_process_wide(), batch_size=10, lr=0.1)
unlike_data = Task(model=network, data=from_the_system, batch_size=10)
unlike_model = Task(model=lambda data: Projected(np.random.default_rng()), data=from_process_wide, batch_size=10)
