"""Train neural networks on many workers, with the answer one worker would give.

>>> import manyhands
>>> record = manyhands.train("mlp", engine="mpi", workers=4, epochs=2)  # doctest: +SKIP
"""

from manyhands._lazy import lazy
from manyhands._version import __version__

TYPE_CHECKING = False  # typing is slow to import, and the command line begins here
if TYPE_CHECKING:
    from manyhands.advice.advise import advise
    from manyhands.crossval.record import CrossvalRecord
    from manyhands.crossval.run import cross_validate
    from manyhands.data import Dataset, SampleSplit, Split
    from manyhands.data.readers.columnar.rows import parquet
    from manyhands.data.readers.images import images
    from manyhands.record.run import Pulse, RunRecord
    from manyhands.record.sweep import SweepRecord
    from manyhands.run import train
    from manyhands.scaling.sweep import scale
    from manyhands.simulation.simulate import simulate
    from manyhands.tasks import Metric, Task
    from manyhands.validation.closing import calibrate
    from manyhands.validation.validate import validate

__all__ = [
    "CrossvalRecord",
    "Dataset",
    "Metric",
    "Pulse",
    "RunRecord",
    "SampleSplit",
    "Split",
    "SweepRecord",
    "Task",
    "__version__",
    "advise",
    "calibrate",
    "cross_validate",
    "images",
    "parquet",
    "scale",
    "simulate",
    "train",
    "validate",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CrossvalRecord": "crossval.record",
        "Dataset": "data",
        "Metric": "tasks",
        "Pulse": "record.run",
        "RunRecord": "record.run",
        "SampleSplit": "data",
        "Split": "data",
        "SweepRecord": "record.sweep",
        "Task": "tasks",
        "advise": "advice.advise",
        "calibrate": "validation.closing",
        "cross_validate": "crossval.run",
        "images": "data.readers.images",
        "parquet": "data.readers.columnar.rows",
        "scale": "scaling.sweep",
        "simulate": "simulation.simulate",
        "train": "run",
        "validate": "validation.validate",
    },
)
