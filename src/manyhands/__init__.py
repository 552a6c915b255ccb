"""Train neural networks on many workers, with the answer one worker would give."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.crossval import CrossvalRecord, cross_validate
    from manyhands.data import Dataset, Split
    from manyhands.lab.sweep import scale
    from manyhands.record import RunRecord, SweepRecord
    from manyhands.run import train
    from manyhands.tasks import Task

__all__ = [
    "CrossvalRecord",
    "Dataset",
    "RunRecord",
    "Split",
    "SweepRecord",
    "Task",
    "cross_validate",
    "scale",
    "train",
]

_HOMES = {
    "CrossvalRecord": "crossval",
    "cross_validate": "crossval",
    "Dataset": "data",
    "Split": "data",
    "scale": "lab.sweep",
    "RunRecord": "record",
    "SweepRecord": "record",
    "train": "run",
    "Task": "tasks",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that reading a record does not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'manyhands' has no attribute '{name}'")
    return getattr(import_module(f"manyhands.{_HOMES[name]}"), name)
