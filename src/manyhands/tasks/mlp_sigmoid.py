"""One hidden layer with sigmoid outputs, full-batch gradient descent on replicated data (paper 002)."""

import math

from torch import nn

from manyhands.data import Dataset
from manyhands.tasks.base import FULL, Task


def model(data: Dataset) -> nn.Module:
    """Stack two layers; the loss applies the output's sigmoid. The paper does not give the hidden width."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.shape), 256), nn.ReLU(), nn.Linear(256, data.classes))


task = Task(
    name="mlp-sigmoid",
    model=model,
    data="mnist:train=5000",
    loss="sigmoid-cross-entropy",
    lr=0.1,
    batch_size=FULL,
    epochs=10,
    micro_batch=1000,
    replicate=12,
)
