"""Tiny tasks with what users bring along: groups, schedules, clipping, layers that meet, any data and losses."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import Dataset

from manyhands import Task

ROWS = 62
WIDTH = 12


def draws(seed: int, *shape: int) -> Tensor:
    """Return normal draws that depend on the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def halves(model: nn.Module) -> list[dict[str, Any]]:
    """Put weights and biases into groups; the biases stay as they are in the first epoch."""
    weights, biases = ([p for p in model.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False))
    return [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.02, "from_epoch": 1}]


def plain(data: Any) -> nn.Module:
    """Build a small stack."""
    return nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, 3))


def labelled() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return inputs with classes, to learn from and to test on."""
    return (draws(1, ROWS, WIDTH), draws(2, ROWS).gt(0.3).long()), (draws(3, 20, WIDTH), draws(4, 20).gt(0.3).long())


class Normed(nn.Module):
    """BatchNorm over channels with places, and over columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(16, 6), nn.SyncBatchNorm(6, momentum=None), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.unflatten(1, (2, 6))).flatten(1))


class Attending(nn.Module):
    """Attention and a recurrent stack, both with dropout inside, and dropout by function."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
        self.recurrent = nn.LSTM(4, 3, num_layers=2, dropout=0.3, batch_first=True, bidirectional=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.recurrent(self.attention(x.unflatten(1, (3, 4))))
        return self.head(nn.functional.dropout(h[:, -1], 0.1, self.training))


class TwoInputs(nn.Module):
    """A regression from two named inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 2), nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.left(left)) + self.right(right)


def named_inputs() -> tuple[Any, Any]:
    """Return dicts of inputs with two numbers as target."""

    def part(seed: int, rows: int) -> tuple[dict[str, Tensor], Tensor]:
        return {"left": draws(seed, rows, 5), "right": draws(seed + 1, rows, 3)}, draws(seed + 2, rows, 2)

    return part(11, ROWS), part(21, 17)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples of several lengths with noise that is drawn anew in each epoch."""

    def __init__(self, seed: int, rows: int) -> None:
        self.seed, self.rows = seed, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        values = draws(self.seed + i, 3 + i % 4)
        return values + 0.1 * torch.randn(values.shape, dtype=torch.float64), values.sum()


def padded(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pad the samples with zeros to the longest of them."""
    values, sums = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(list(values), batch_first=True), torch.stack(sums)


class Summing(nn.Module):
    """A sum over the places of a learned function, which padding does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(draws(5, 4)), nn.Parameter(draws(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(x.unsqueeze(2) * self.weight) * self.scale).sum((1, 2))


def loaders() -> tuple[Any, Any]:
    """Return loaders of samples, with a collate function."""
    return tuple(
        torch.utils.data.DataLoader(Noisy(seed, rows), collate_fn=padded) for seed, rows in ((100, ROWS), (900, 14))
    )


CLASS_WEIGHTS = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)


def weighted(output: Tensor, target: Tensor) -> Tensor:
    """Return a mean that is weighted by the classes."""
    return nn.functional.cross_entropy(output, target, weight=CLASS_WEIGHTS.to(output.dtype))


def with_penalty(output: Tensor, target: Tensor, model: nn.Module) -> Tensor:
    """Return a sum over the rows that looks at the network, too."""
    return nn.functional.cross_entropy(output, target, reduction="sum") + 0 * sum(p.sum() for p in model.parameters())


def task(model: Callable[[Any], nn.Module] = plain, data: Any = labelled, **settings: Any) -> Task:
    """Make a task of small steps."""
    return Task(model=model, data=data, **{"lr": 0.05, "batch_size": 10, "loss": "cross-entropy", **settings})


groups = task(
    optimizer=lambda params, lr: SGD(params, lr=lr, momentum=0.9),
    param_groups=halves,
    scheduler=lambda o: OneCycleLR(o, max_lr=[0.1, 0.05], total_steps=100),
)
shapes = task(
    optimizer=lambda params, lr: Adafactor(params, lr=lr),
    scheduler=lambda o: StepLR(o, 1, 0.5),
    scheduler_every="epoch",
)
clipped = task(optimizer=lambda params, lr: AdamW(params, lr=lr), param_groups=halves)
normed = task(lambda data: Normed())
attending = task(lambda data: Attending(), optimizer="adam")
regression = task(lambda data: TwoInputs(), named_inputs, loss="mse")
samples = task(lambda data: Summing(), loaders, loss=nn.functional.mse_loss, lr=0.01)
by_class = task(loss=weighted, loss_weight=lambda y: CLASS_WEIGHTS[y.long()].sum())
summed = task(loss=with_penalty, reduction="sum", lr=0.005)
