"""Tasks whose batches cannot be cut into slices without changing the answer, and others that look as if they could not.

Each name says why; `KINDS` says what must be found.
"""

import random
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from manyhands import Dataset, Task

FLAT = "synthetic:samples=96,features=12,classes=3,test=23,seed=5"


class Net(nn.Module):
    """A layer, some function of the input before it, and a Linear layer."""

    def __init__(self, before, layer: nn.Module | None = None) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.before, self.layer, self.last = before, layer or nn.Identity(), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.before(self, x))


class Mean(nn.Module):
    """Takes the mean of the batch from each row."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Frozen(nn.BatchNorm1d):
    """BatchNorm that stays in evaluation mode."""

    def train(self, mode: bool = True):  # type: ignore[no-untyped-def]
        return super().train(False)


class Assigned(nn.Module):
    """Keeps a running mean, and assigns it anew instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 3)
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.last(x)


class Largest(Assigned):
    """Keeps the largest input ever seen, which is no mean."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.copy_(torch.maximum(self.mean, x.detach().amax(0)))
        return self.last(x)


class OwnGenerator(nn.Module):
    """Drops inputs by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.generator = nn.Linear(12, 3), torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x * torch.rand(x.shape, generator=self.generator).gt(0.3)
        return self.last(x)


class FlatSequence(nn.Module):
    """Gives a function a (length x batch, width) tensor."""

    def __init__(self, function) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        steps = _sequence(x).transpose(0, 1)
        return self.function(steps.flatten(0, 1)).view(steps.shape).transpose(0, 1).flatten(1)


class Packed(nn.Module):
    """An LSTM with dropout over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 4, 2, batch_first=True, dropout=0.3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0] > 0).long()
        packed = pack_padded_sequence(_sequence(x), lengths, batch_first=True, enforce_sorted=False)
        return self.last(self.lstm(packed)[1][0][-1])


def _numpy_noise(net: nn.Module, x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.random.standard_normal(x.shape)).to(x.dtype)


def _sequence(x: Tensor) -> Tensor:
    return x.view(-1, 3, 4)


def _recurrent(kind: type[nn.Module], dropout: float):  # type: ignore[no-untyped-def]
    layer = kind(4, 4, 2, batch_first=True, dropout=dropout)
    return lambda: Net(lambda net, x: net.layer(_sequence(x))[0].flatten(1), layer)


def _encoder(dropout: float, batch_first: bool = True):  # type: ignore[no-untyped-def]
    def run(net: Net, x: Tensor) -> Tensor:
        rows = _sequence(x)
        out = net.layer(rows) if batch_first else net.layer(rows.transpose(0, 1)).transpose(0, 1)
        return out.flatten(1)

    return lambda: Net(run, nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=batch_first))


def _through(layer) -> object:  # type: ignore[no-untyped-def]
    return lambda: Net(lambda net, x: net.layer(x), layer())


MODELS = {
    "plain": (lambda: Net(lambda net, x: x), []),
    "batchnorm": (_through(lambda: nn.BatchNorm1d(12)), ["rows"]),
    "batchnorm without statistics": (_through(lambda: nn.BatchNorm1d(12, track_running_stats=False)), ["rows"]),
    "frozen batchnorm": (_through(lambda: Frozen(12)), []),
    "syncbatchnorm": (_through(lambda: nn.SyncBatchNorm(12)), ["rows"]),
    "batchnorm and the mean": (
        lambda: Net(lambda net, x: net.layer(x), nn.Sequential(nn.BatchNorm1d(12), Mean(), nn.Tanh())), ["rows"],
    ),
    "two that mix": (lambda: Net(lambda net, x: net.layer(x - x.mean(0)), nn.BatchNorm1d(12)), ["rows"]),
    "mean of the batch": (lambda: Net(lambda net, x: x - x.mean(0)), ["rows"]),
    "functional dropout": (lambda: Net(lambda net, x: F.dropout(x, 0.5, net.training)), []),
    "functional dropout of nothing": (lambda: Net(lambda net, x: F.dropout(x, 0.0, net.training)), []),
    "noise": (lambda: Net(lambda net, x: x + torch.randn_like(x)), []),
    "noise of numpy": (lambda: Net(_numpy_noise), ["random"]),
    "noise of Python": (lambda: Net(lambda net, x: x * random.random()), ["random"]),
    "own generator": (OwnGenerator, ["memory"]),
    "gumbel": (lambda: Net(lambda net, x: F.gumbel_softmax(x)), []),
    "dropout": (_through(lambda: nn.Dropout(0.5)), []),
    "rrelu": (_through(nn.RReLU), []),
    "alpha dropout": (_through(lambda: nn.AlphaDropout(0.5)), []),
    "feature alpha dropout": (_through(lambda: nn.FeatureAlphaDropout(0.5)), []),
    "noise and batchnorm": (
        lambda: Net(lambda net, x: net.layer(_numpy_noise(net, x)), nn.BatchNorm1d(12)), ["random", "rows"],
    ),
    "dropout and batchnorm": (
        lambda: Net(lambda net, x: net.layer(F.dropout(x, 0.1)), nn.BatchNorm1d(12)), ["rows"],
    ),
    "spectral norm": (_through(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(12, 12))), []),
    "layer norm": (_through(lambda: nn.LayerNorm(12)), []),
    "group norm": (_through(lambda: nn.GroupNorm(3, 12)), []),
    "instance norm": (
        lambda: Net(lambda net, x: net.layer(_sequence(x)).flatten(1), nn.InstanceNorm1d(3, track_running_stats=True)),
        [],
    ),
    "lstm": (_recurrent(nn.LSTM, 0.0), []),
    "lstm with dropout": (_recurrent(nn.LSTM, 0.3), []),
    "gru with dropout": (_recurrent(nn.GRU, 0.3), []),
    "rnn with dropout": (_recurrent(nn.RNN, 0.3), []),
    "attention": (_encoder(0.0), []),
    "attention, sequence first": (_encoder(0.0, batch_first=False), []),
    "attention with dropout": (_encoder(0.3), []),
    "attention with dropout, sequence first": (_encoder(0.3, batch_first=False), []),
    "attention over the batch": (
        lambda: Net(lambda net, x: net.layer(x.unsqueeze(0)).squeeze(0),
                    nn.TransformerEncoderLayer(12, 2, 8, dropout=0.0, batch_first=True)),
        ["rows"],
    ),
    "dropout, sequence first": (
        lambda: Net(lambda net, x: net.layer(_sequence(x).transpose(0, 1)).transpose(0, 1).flatten(1), nn.Dropout(0.5)),
        [],
    ),
    "dropout, flattened sequence first": (_through(lambda: FlatSequence(nn.Dropout(0.5))), ["positions"]),
    "functional dropout, flattened sequence first": (_through(lambda: FlatSequence(F.dropout)), ["positions"]),
    "dropout of weights": (lambda: Net(lambda net, x: F.linear(x, F.dropout(net.last.weight))[:, :1] + x), []),
    "one scale for the batch": (lambda: Net(lambda net, x: x * torch.rand(1)), []),
    "skipped at random": (lambda: Net(lambda net, x: x if torch.rand(()) < 0.5 else F.dropout(x)), []),
    "shuffled rows": (lambda: Net(lambda net, x: x + 0 * torch.randperm(len(x))[0]), ["random"]),
    "packed lstm with dropout": (Packed, ["random"]),
    "checkpointed dropout": (
        lambda: Net(lambda net, x: checkpoint(net.layer, x, use_reentrant=False), nn.Dropout(0.5)), ["random"],
    ),
    "assigned statistics": (Assigned, []),
    "largest input": (Largest, ["statistics"]),
}  # fmt: skip


def _sum(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="sum")


def _weighted(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, weight=torch.tensor(WEIGHTS, dtype=out.dtype))


WEIGHTS = (1.0, 2.0, 5.0)


def weight_of(y: Tensor) -> Tensor:
    """Return the weight of labels in the loss with class weights."""
    return torch.tensor(WEIGHTS, dtype=torch.float64)[y].sum()


def with_decay(out: Tensor, y: Tensor, model: nn.Module) -> Tensor:
    """Return a loss that needs the network."""
    return F.cross_entropy(out, y) + 0.01 * sum(p.square().sum() for p in model.parameters())


LOSSES = {
    "mean": (lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1), []),
    "sum": (_sum, ["sum"]),
    "class weights": (_weighted, ["loss"]),
    "some labels ignored": (lambda out, y: F.cross_entropy(out, y, ignore_index=0), ["loss"]),
    "pairs of rows": (lambda out, y: F.cross_entropy(out, y) + (out @ out.T).mean(), ["loss"]),
    "noise": (lambda out, y: F.cross_entropy(out + torch.randn_like(out), y), []),
    "noise of numpy": (lambda out, y: F.cross_entropy(out * np.random.random(), y), ["random loss"]),
}


def model_task(name: str, batchnorm: Literal["global", "local"] = "local") -> Task:
    """Return the task of a model; its BatchNorm layers see the rows of one worker unless the test says else."""
    make = MODELS[name][0]
    return Task(model=lambda data: make(), data=FLAT, lr=0.1, batch_size=12, batchnorm=batchnorm)


def loss_task(name: str) -> Task:
    """Return the task of a loss."""
    return Task(model=lambda data: Net(lambda net, x: x), data=FLAT, lr=0.1, batch_size=12, loss=LOSSES[name][0])


def rare(data: Dataset) -> Dataset:
    """Return the data with almost all rows of one class."""
    labels = torch.zeros_like(data.train.y)
    labels[50], labels[70] = 1, 2
    return Dataset(data.name, type(data.train)(data.train.x, labels), data.test, data.classes)


noise = model_task("packed lstm with dropout")
norm = model_task("batchnorm")
own_generator = model_task("own generator")
numpy_noise = model_task("noise of numpy")
summed = loss_task("sum")
plain = model_task("plain")
