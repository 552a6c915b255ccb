"""Tasks with metrics of their own, and one whose targets are no classes."""

import torch
import torchmetrics
from torch import Tensor, nn

from manyhands import Dataset, Metric, Split, Task

ROWS, TEST_ROWS = 97, 1203


def numbers() -> Dataset:
    """Return data whose whole-number targets are sizes, not classes."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS + TEST_ROWS, 5, generator=generator)
    y = (2 * x[:, 0] - x[:, 1] + 8).round().clamp(min=0).long()
    return Dataset("numbers", Split(x[:ROWS], y[:ROWS]), Split(x[ROWS:], y[ROWS:]), int(y.max()) + 1)


def squares(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of the squared errors."""
    return ((output.squeeze(1) - target.to(output.dtype)) ** 2).mean()


def distance(output: Tensor, target: Tensor) -> float:
    """Return the mean of the absolute errors, as a plain number."""
    return float((output.squeeze(1) - target).abs().mean())


class Columns(torchmetrics.MeanSquaredError):
    """A sum and a count, joined by their sum."""

    def update(self, output: Tensor, target: Tensor) -> None:
        super().update(output.squeeze(1).float(), target.float())


class Ranks(torchmetrics.Metric):
    """All outputs, one behind the other: how many are larger than the one before."""

    higher_is_better = True

    def __init__(self) -> None:
        super().__init__()
        self.add_state("outputs", [], dist_reduce_fx="cat")

    def update(self, output: Tensor, target: Tensor) -> None:
        self.outputs.append(output.squeeze(1))

    def compute(self) -> Tensor:
        outputs = self.outputs if isinstance(self.outputs, Tensor) else torch.cat(self.outputs)
        return (outputs.diff() > 0).sum()


class Extremes(torchmetrics.Metric):
    """States that are joined by their largest, smallest, mean, and by a function of the user's."""

    higher_is_better = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("most", torch.tensor(-1e9), dist_reduce_fx="max")
        self.add_state("least", torch.tensor(1e9), dist_reduce_fx="min")
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")
        self.add_state("product", torch.tensor(1.0), dist_reduce_fx=lambda states: states.prod(0))

    def update(self, output: Tensor, target: Tensor) -> None:
        values = output.float()
        self.most, self.least = torch.maximum(self.most, values.max()), torch.minimum(self.least, values.min())
        self.mean, self.product = values.mean(), self.product * 2

    def compute(self) -> Tensor:
        return self.most - self.least + 10 * self.mean + 100 * self.product


METRICS = {
    "mae": Metric(distance, better="lower"),
    "plain": distance,
    "mse": Columns(),
    "ranks": Ranks(),
    "extremes": Extremes(),
    "both": torchmetrics.MetricCollection({"again": Columns()}),
}


def network(data: Dataset) -> nn.Module:
    """Return a network with one output."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def plain_network(data: Dataset) -> nn.Module:
    """Return a network with one output, whose rows do not see each other."""
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


sizes = Task(model=plain_network, data=numbers, loss=squares, lr=0.02, batch_size=20, metrics=METRICS)
with_batchnorm = Task(model=network, data=numbers, loss=squares, lr=0.02, batch_size=20, metrics=METRICS)
