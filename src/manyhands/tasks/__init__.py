"""What is learned: model, data, loss and optimiser."""

from manyhands.registry import tasks as names
from manyhands.tasks.base import Task
from manyhands.tasks.load import load
from manyhands.tasks.metrics import Metric

__all__ = ["Metric", "Task", "load", "names"]
