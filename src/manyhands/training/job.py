"""The job that a launcher hands to every rank, and the objects that a rank works with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.record.run import RunDir
from manyhands.replica import Replica
from manyhands.sync import Sync
from manyhands.tasks import Task


@dataclass(frozen=True)
class Job:
    """Everything that a rank needs to know to take part in a run."""

    config: RunConfig
    run: RunDir
    resume: str = ""
    """Checkpoint to go on from."""
    keep_weights: bool = False
    """Whether to keep the weights after every step, for `verify`."""
    warnings: tuple[str, ...] = ()
    """Warnings for the record, such as why the answer is not that of one worker."""
    task: Task | None = None
    """The task itself, where the rank runs in the process that has it."""
    data: Dataset | None = None
    """The task's data, likewise."""
    same_data: bool = False
    """Whether all ranks are known to have the same data: they share it, or it was compared before."""
    read_s: float = 0.0
    """Seconds that it took to read the data."""
    place: int | None = None
    """Number of the host's device to use, where it is not the rank's number."""
    after_step: Callable[[Comm, Replica, Sync, int], None] | None = None
    """Called by every worker after each of its steps; only where workers run in the process that has this."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Arguments of a worker function other than `train_rank`, as plain JSON."""


@final
@dataclass(frozen=True)
class RankContext:
    """The objects that a rank works with from its first step to its record."""

    job: Job
    comm: Comm
    """All ranks of the run."""
    workers: Comm
    """The workers; on a server, the servers."""
    traced: TracedComm
    """Counts the calls, bytes and seconds between all ranks."""
    group: Comm
    """The strategy's comm: `traced`, wrapped for sums in a fixed order with --exact."""
    replica: Replica
    strategy: Sync
