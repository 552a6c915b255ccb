"""What is learned: model, data, loss and optimiser."""

from manyhands.tasks.base import Task
from manyhands.tasks.load import load, names

__all__ = ["Task", "load", "names"]
