"""Train neural networks on many workers, with the answer one worker would give.

>>> import manyhands
>>> record = manyhands.train("mlp", engine="mpi", workers=4, epochs=2)  # doctest: +SKIP
"""

from manyhands.lazy import lazy
from manyhands.version import __version__

TYPE_CHECKING = False  # typing is slow to import, and the command line begins here
if TYPE_CHECKING:
    from manyhands.crossval import CrossvalRecord, cross_validate
    from manyhands.data import Dataset, Split
    from manyhands.lab.advise import advise
    from manyhands.lab.calibrate import calibrate
    from manyhands.lab.simulate import simulate
    from manyhands.lab.sweep import scale
    from manyhands.lab.validate import validate
    from manyhands.record import Pulse, RunRecord, SweepRecord
    from manyhands.run import train
    from manyhands.tasks import Task

__all__ = [
    "CrossvalRecord",
    "Dataset",
    "Pulse",
    "RunRecord",
    "Split",
    "SweepRecord",
    "Task",
    "__version__",
    "advise",
    "calibrate",
    "cross_validate",
    "scale",
    "simulate",
    "train",
    "validate",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CrossvalRecord": "crossval",
        "Dataset": "data",
        "Pulse": "record",
        "RunRecord": "record",
        "Split": "data",
        "SweepRecord": "record",
        "Task": "tasks",
        "advise": "lab.advise",
        "calibrate": "lab.calibrate",
        "cross_validate": "crossval",
        "scale": "lab.sweep",
        "simulate": "lab.simulate",
        "train": "run",
        "validate": "lab.validate",
    },
)
