"""Tasks that train in milliseconds, one for each kind of network that must give the serial answer."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands import Dataset, Task

FLAT = "synthetic:samples=97,features=12,classes=3,test=23,seed=5"
IMAGES = "synthetic:samples=97,shape=2x6x6,classes=3,test=23,seed=5"


def stack(data: Dataset) -> nn.Module:
    """Build what the fused replica can hold."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(data.shape), 10), nn.ReLU(),
        nn.Linear(10, 7), nn.Sigmoid(),
        nn.Linear(7, data.classes),
    )  # fmt: skip


def with_dropout(data: Dataset) -> nn.Module:
    """Build a stack with two random layers."""
    return nn.Sequential(
        nn.Linear(data.shape[0], 16), nn.Tanh(), nn.Dropout(0.3),
        nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(16, data.classes),
    )  # fmt: skip


class Drawing(nn.Module):
    """Draws random numbers inside recurrent and attention layers, and by torch's functions; the batch comes second."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(4, 4, 2, dropout=0.3, bidirectional=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.3)
        self.last = nn.Linear(24, data.classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.view(-1, 3, 4).transpose(0, 1)
        tokens = self.attention(self.recurrent(tokens)[0]).transpose(0, 1)
        noise = 0.1 * torch.randn_like(tokens) if self.training else 0
        return self.last(F.dropout(tokens + noise, 0.3, self.training).flatten(1))


def convolutions(data: Dataset) -> nn.Module:
    """Build a network whose weights are laid out channels-last, with a layer that drops whole channels."""
    return nn.Sequential(
        nn.Conv2d(data.shape[0], 5, 3), nn.ReLU(), nn.Dropout2d(0.25),
        nn.Conv2d(5, 4, 3), nn.Tanh(), nn.Flatten(),
        nn.Linear(16, data.classes),
    )  # fmt: skip


def with_batchnorm(data: Dataset) -> nn.Module:
    """Build a network whose rows see each other; its planes have several values, so that one row is enough."""
    return nn.Sequential(
        nn.Conv2d(data.shape[0], 5, 3), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Flatten(), nn.Linear(80, data.classes),
    )  # fmt: skip


mlp = Task(model=stack, data=FLAT, lr=0.1, batch_size=10)
sigmoid = Task(model=stack, data=FLAT, lr=0.1, batch_size=10, loss="sigmoid-cross-entropy", optimizer="momentum")
adam = Task(model=stack, data=FLAT, lr=0.01, batch_size=10, optimizer="adam")
dropout = Task(model=with_dropout, data=FLAT, lr=0.01, batch_size=10, optimizer="adamw")
draws = Task(model=Drawing, data=FLAT, lr=0.05, batch_size=10)
conv = Task(model=convolutions, data=IMAGES, lr=0.05, batch_size=10, optimizer="momentum")
batchnorm = Task(model=with_batchnorm, data=IMAGES, lr=0.05, batch_size=30)
