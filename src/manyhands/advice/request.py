"""What advice is asked for: the options, and what they stand for on this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.errors import check
from manyhands.model.cluster import Cluster
from manyhands.record.calibration import Calibration
from manyhands.simulation.predict import Predictor
from manyhands.spec import with_field_docs


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """What advice is asked for: the options of `manyhands advise`."""

    task: str
    """Built-in task, or FILE.py:VARIABLE."""
    target_accuracy: float
    """Share of the test samples to get right, between 0 and 1."""
    cluster: str | Path | Cluster | None = None
    """Cluster to run on: a file, or the name of a ready network; without it, this host."""
    max_cost: float | None = None
    """The most that the training may cost on the cluster."""
    max_workers: int = 0
    """The most workers to use; 0 for the cores or GPUs of this host, or 1,024 on a cluster."""
    device: str = "cpu"
    """Where workers compute: `cpu`, or `cuda` for a GPU each."""
    engines: str | Sequence[str] = ""
    """Engines to choose from; without any, those that were calibrated, or mpi on a cluster; torch for GPUs."""
    syncs: str | Sequence[str] = ""
    """Strategies to choose from; without any, all exact ones and `local-sgd:period=8`."""
    calibration: Path | Calibration | None = None
    """Measured times; without it, the user's own calibration file."""
    budget_s: float = 300.0
    """Seconds after which trainings end."""
    max_epochs: int = 0
    """Epochs after which one worker that has not reached the accuracy is given up; 0 for 5 times the task's own."""
    out: Path | None = None
    """Folder of all advice; without it, nothing is kept."""
    command: str = ""
    """Command line that asks for the same advice again."""

    def __post_init__(self) -> None:
        target = self.target_accuracy
        check(0 < target < 1, f"target-accuracy must be between 0 and 1, such as 0.98, got {target:g}")
        check(self.budget_s > 0, f"budget must be more than 0 seconds, got {self.budget_s:g}")
        check(self.max_epochs >= 0, f"max-epochs must be at least 1, got {self.max_epochs}")


@dataclass(frozen=True)
class CheckedAdvice:
    """A request that was checked, and what it stands for on this machine."""

    request: AdviceRequest
    predictors: dict[str, Predictor]
    """By engine."""
    cluster_name: str
    syncs: list[str]
    counts: list[int]
    """Numbers of workers to consider."""
    limit: str
    """What bounds the number of workers, in words."""
    batch_size: int
    """The task's own."""
    most_replicas: int
    """Replicas that fit into memory: the most workers of an inexact strategy, of which all n are trained."""
    circumstances: str
    """Of the calibration: its age, load, errors, and the machine's speed since."""
    begun_s: float
    """When the advice was asked for, by `time.perf_counter()`."""

    @property
    def predictor(self) -> Predictor:
        """Any of the predictors: they differ in the engine only."""
        return next(iter(self.predictors.values()))

    @property
    def cluster(self) -> Cluster | None:
        """The cluster to run on; None for this host."""
        return self.predictor.cluster

    @property
    def until_s(self) -> float:
        """When the budget for trainings ends, by `time.perf_counter()`."""
        return self.begun_s + self.request.budget_s

    @property
    def in_time(self) -> bool:
        """Whether the budget allows more training."""
        return time.perf_counter() < self.until_s
