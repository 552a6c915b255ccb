"""The two networks of the comparison, their data and optimisers, in plain PyTorch.

Written without manyhands' model code; only the embedded MNIST files are read through it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from manyhands.data import load


def mlp() -> nn.Module:
    """784-256-128-10 with ReLU."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    for layer, init in ((1, nn.init.kaiming_normal_), (3, nn.init.kaiming_normal_), (5, nn.init.xavier_normal_)):
        init(model[layer].weight)
        nn.init.zeros_(model[layer].bias)
    return model


def cnn() -> nn.Module:
    """Three convolutions, dropout, three dense layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 128, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(256, 1000), nn.ReLU(),
        nn.Linear(1000, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What is learned, and with which settings."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[Tensor]], Optimizer]
    samples: int
    """Training samples, the first of MNIST."""

    def data(self) -> tuple[Tensor, Tensor]:
        """Return the images as float32 in memory, scaled to 0..1, and their labels."""
        train = load(f"mnist:train={self.samples}").train
        return train.x.float() / 255, train.y


PROBLEMS = {
    "mlp": Problem(mlp, lambda params: SGD(params, lr=0.01), samples=10_000),
    "cnn": Problem(cnn, lambda params: Adam(params, lr=0.001), samples=60_000),
}


def mean(losses: list[Tensor]) -> float:
    """Return the mean of some losses, to see that the loop learns."""
    return float(torch.stack(losses).mean())
