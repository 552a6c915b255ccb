"""Tasks with data of every kind: regression, nests of inputs, no targets, sequences, samples read one by one."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from manyhands import Task
from manyhands.data.order import generator

ROWS, TEST_ROWS, WIDTH = 29, 7, 5
"""A last batch of 8 has 5 rows: uneven slices for 2 and 3 workers."""


def drawn(*shape: int, key: int = 0) -> Tensor:
    return torch.from_numpy(generator(key).standard_normal(shape))


def arrays(*shape: int, key: int = 0) -> tuple[Tensor, Tensor]:
    return drawn(ROWS, *shape, key=key), drawn(TEST_ROWS, *shape, key=key + 100)


X, X_TEST = arrays(WIDTH)
Y, Y_TEST = X.sum(1, keepdim=True).sin(), X_TEST.sum(1, keepdim=True).sin()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, 3), nn.Embedding(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"out": (self.left(left) * self.right(right)).sum(1)}


KINDS = torch.arange(ROWS) % 4, torch.arange(TEST_ROWS) % 4


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Embedding(6, 4), nn.Linear(4, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.inner(tokens).cumsum(1)).transpose(1, 2)  # type: ignore[no-any-return]


TOKENS, TOKENS_TEST = ((t * 100).long().abs() % 6 for t in arrays(9, key=3))


class Augmented(Dataset):  # type: ignore[type-arg]
    """Draws from every process-wide generator, and from nothing else."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(WIDTH).double() + np.random.rand() + random.random()
        return self.x[i] + 0.1 * noise, self.y[i]


class Lengths(Dataset):  # type: ignore[type-arg]
    """Rows of different lengths, which only a collate function makes a batch of."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> tuple[Tensor, float]:
        return drawn(1 + i % 6, key=i), float(i % 3)


def padded(samples: list[tuple[Tensor, float]]) -> tuple[dict[str, Tensor], Tensor]:
    values, targets = zip(*samples, strict=True)
    lengths = torch.tensor([len(t) for t in values])
    return {"values": pad_sequence(list(values), batch_first=True), "lengths": lengths}, torch.tensor(targets)


class MeanOfRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 3)

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(values.shape[1]) < lengths.unsqueeze(1)
        each = self.inner(values.unsqueeze(2)).tanh().sum(2)
        return torch.where(real, each, 0.0).sum(1) / lengths


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for i in range(self.rows):
            yield {"x": drawn(WIDTH, key=i), "weight": torch.tensor(1.0 + i % 2)}


class OfDicts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.inner(x) * weight.unsqueeze(1)  # type: ignore[no-any-return]


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def task(model: Any, data: Any, loss: Any = "mse", **options: Any) -> Task:
    return Task(model=model, data=data, loss=loss, **{"batch_size": 8, "lr": 0.05, "epochs": 2, **options})


regression = task(nn.Linear(WIDTH, 1), lambda: ((X, Y), (X_TEST, Y_TEST)))
dicts = task(
    TwoInputs(),
    lambda: (({"left": X, "right": KINDS[0]}, {"sum": Y}), ({"left": X_TEST, "right": KINDS[1]}, {"sum": Y_TEST})),
    lambda output, target: squares(output["out"], target["sum"].squeeze(1)),
)
tuples = task(
    TwoInputs(),
    lambda: (((X, KINDS[0]), Y), ((X_TEST, KINDS[1]), Y_TEST)),
    lambda output, target: squares(output["out"], target.squeeze(1)),
    micro_batch=2,
)
no_targets = task(
    nn.Linear(WIDTH, 2), lambda: ((X, None), (X_TEST, None)), lambda output, target: (output**2).sum(1).mean()
)
sequences = task(
    Sequences(),
    lambda: (TensorDataset(TOKENS[:, :-1], TOKENS[:, 1:]), TensorDataset(TOKENS_TEST[:, :-1], TOKENS_TEST[:, 1:])),
    "cross-entropy",
)
augmented = task(nn.Linear(WIDTH, 1), lambda: (Augmented(X, Y), Augmented(X_TEST, Y_TEST)))
parts = task(
    nn.Linear(WIDTH, 1),
    lambda: (
        ConcatDataset([Subset(Augmented(X, Y), range(9)), Augmented(X[9:], Y[9:])]),
        Subset(Augmented(X_TEST, Y_TEST), [3, 1]),
    ),
)
collated = task(
    MeanOfRow(),
    lambda: (DataLoader(Lengths(ROWS), 4, shuffle=True, collate_fn=padded), DataLoader(Lengths(5), collate_fn=padded)),
    squares,
)
stream = task(OfDicts(), lambda: (Stream(ROWS), Stream(TEST_ROWS)), lambda output, target: squares(output, target["x"]))


class Ending(Augmented):
    """Ends its process at one sample, or raises an error there."""

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if i == 17 and os.environ.get("MANYHANDS_TEST_END") == "kill" and torch.utils.data.get_worker_info():
            os._exit(3)
        if i == 17 and os.environ.get("MANYHANDS_TEST_END") == "raise":
            raise ValueError("no such picture")
        return super().__getitem__(i)


ending = task(nn.Linear(WIDTH, 1), lambda: (Ending(X, Y), Augmented(X_TEST, Y_TEST)))

ALL = ("regression", "dicts", "tuples", "no_targets", "sequences", "augmented", "parts", "collated", "stream")
HERE = Path(__file__)
