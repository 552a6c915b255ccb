"""Train neural networks on many workers, with the answer one worker would give."""

from manyhands.data import Dataset, Split
from manyhands.record import RunRecord
from manyhands.run import train
from manyhands.tasks import Task

__all__ = ["Dataset", "RunRecord", "Split", "Task", "train"]
