"""Whom to follow: one hidden layer guesses ten accounts that the writer of a tweet may follow (paper 004)."""

import math

from torch import nn

from manyhands.data import Dataset
from manyhands.tasks.base import Task


def model(data: Dataset) -> nn.Module:
    """Stack two layers; the paper does not give the hidden width."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.shape), 128), nn.ReLU(), nn.Linear(128, data.classes))


task = Task(
    name="recommender", model=model, data="tweets", optimizer="momentum", lr=0.1, batch_size=512, epochs=10, top=10
)
