"""Three convolutions and three dense layers with dropout, Adam: 690,590 parameters (paper 003)."""

from torch import nn

from manyhands.data import Dataset
from manyhands.tasks.base import Task


def model(data: Dataset) -> nn.Module:
    """Build the paper's network; it is made for one-channel images of 28 by 28 pixels."""
    return nn.Sequential(
        nn.Conv2d(data.shape[0], 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 128, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(256, 1000), nn.ReLU(),
        nn.Linear(1000, 100), nn.ReLU(),
        nn.Linear(100, data.classes),
    )  # fmt: skip


task = Task(name="cnn", model=model, optimizer="adam", lr=0.001, batch_size=128, epochs=5, micro_batch=64)
