"""A perceptron with three hidden layers, trained with the settings of paper 004's image experiments."""

import math

from torch import nn

from manyhands.data import Dataset
from manyhands.tasks.base import Task


def model(data: Dataset) -> nn.Module:
    """Stack four layers; the paper does not give their widths."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(data.shape), 256), nn.ReLU(),
        nn.Linear(256, 128), nn.ReLU(),
        nn.Linear(128, 64), nn.ReLU(),
        nn.Linear(64, data.classes),
    )  # fmt: skip


task = Task(name="dnn", model=model, lr=0.099, batch_size=1024, epochs=20)
