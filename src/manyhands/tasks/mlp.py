"""The perceptron 784-256-128-10 with ReLU, He and Xavier initialisation and plain SGD (paper 001)."""

import math

from torch import nn

from manyhands.data import Dataset
from manyhands.tasks.base import Task


def model(data: Dataset) -> nn.Module:
    """Stack three layers; He initialisation before a ReLU, Xavier before the output."""
    first, second = nn.Linear(math.prod(data.shape), 256), nn.Linear(256, 128)
    last = nn.Linear(128, data.classes)
    for layer in (first, second):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    nn.init.xavier_normal_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)


task = Task(name="mlp", model=model, data="mnist:train=10000,test=2000", lr=0.01, batch_size=64, epochs=20)
