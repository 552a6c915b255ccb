"""Train neural networks on many workers, with the answer one worker would give."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.crossval import CrossvalRecord, cross_validate
    from manyhands.data import Dataset, Split
    from manyhands.lab.advise import advise
    from manyhands.lab.calibrate import calibrate
    from manyhands.lab.simulate import simulate
    from manyhands.lab.sweep import scale
    from manyhands.lab.validate import validate
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
    "advise",
    "calibrate",
    "cross_validate",
    "scale",
    "simulate",
    "train",
    "validate",
]

_HOMES = {
    "CrossvalRecord": "crossval",
    "cross_validate": "crossval",
    "Dataset": "data",
    "Split": "data",
    "advise": "lab.advise",
    "calibrate": "lab.calibrate",
    "scale": "lab.sweep",
    "simulate": "lab.simulate",
    "validate": "lab.validate",
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
