"""Runs of a task on threads of this process, without a launcher: milliseconds each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from manyhands import Dataset, Task, sync
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.record.run import RunDir, open_run
from manyhands.training.job import Job
from manyhands.training.loop import train_rank

Trained = dict[str, Tensor]


class Silent:
    """Watches a rank that nobody looks at."""

    def at(self, step: int) -> None:
        """Ignore the step."""

    def stop_asked(self) -> bool:
        """Go on."""
        return False

    def pulse(self, pulse: object) -> None:
        """Ignore the progress."""


def trained(
    ranks: Callable[..., list[Any]],
    out: Path,
    task: Task,
    data: Dataset,
    workers: int,
    strategy: str = "allreduce",
    after_step: Callable[..., None] | None = None,
    resume: str = "",
    **settings: Any,
) -> tuple[Trained, dict[str, Any]]:
    """Train a task, in a folder `run-N` of `out`; return weights and statistics, and the record."""
    given = {"task": "own", "workers": workers, "sync": strategy, "lr": task.lr, "steps": 9, "dtype": "float64"}
    config = make_config({**given, "engine": "threads" if workers > 1 else "serial", **settings})
    folder = RunDir(out / f"run-{len(list(out.iterdir()))}")
    open_run(folder, config)
    job = Job(config, folder, resume, task=task, data=data, same_data=True, after_step=after_step)

    def work(comm: Comm) -> dict[str, Any]:
        return train_rank(comm, job, Silent())

    record = ranks(work, workers + sync.make(strategy).num_servers())[0]
    return load_file(folder.model), record


def near(actual: Trained, expected: Trained, most: float = 1e-12) -> bool:
    """Tell whether all tensors have the same names and, to round-off, the same values."""
    assert actual.keys() == expected.keys()
    # A bias before a BatchNorm layer has no slope but round-off: what counts is its size beside the weights'.
    return all(
        float((actual[name] - t).double().norm()) <= most * float(t.double().norm() + 1) for name, t in expected.items()
    )
