"""Softmax regression by full-batch gradient descent, at image sizes 28, 56 and 112 (paper 000)."""

import math

from torch import nn

from manyhands.data import Dataset
from manyhands.tasks.base import FULL, Task


def model(data: Dataset) -> nn.Module:
    """Connect every pixel to every class."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.shape), data.classes))


task = Task(name="softmax", model=model, lr=0.5, batch_size=FULL, epochs=100, micro_batch=1000, eval_every=10)
