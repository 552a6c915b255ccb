"""What a rank is to do, as a launcher hands it to every rank, and what the rank does it with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.record import RunDir
from manyhands.replica import Replica
from manyhands.sync import Sync
from manyhands.tasks import Task


@dataclass(frozen=True)
class Job:
    """What a rank is to do."""

    config: RunConfig
    run: RunDir
    resume: str = ""
    """Checkpoint to go on from."""
    keep_weights: bool = False
    """Whether to keep the weights after every step, for `verify`."""
    warnings: tuple[str, ...] = ()
    """What the record is to say of the run's answer."""
    task: Task | None = None
    """The task itself, where the rank runs in the process that has it."""
    data: Dataset | None = None
    """The task's data, likewise."""
    same_data: bool = False
    """Whether all ranks are known to have the same data: they share it, or it was compared before."""
    read_s: float = 0.0
    """How long it took to read them."""
    place: int | None = None
    """Which of the host's devices to use, where that is not the rank's own."""
    after_step: Callable[[Comm, Replica, Sync, int], None] | None = None
    """What every worker does besides after each of its steps, where it runs in the process that has this."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What a worker function other than `train_rank` wants to know, as plain JSON."""


@final
@dataclass(frozen=True)
class RankContext:
    """What a rank works with from its first step to its record."""

    job: Job
    comm: Comm
    """All ranks of the run."""
    workers: Comm
    """The workers; on a server, the servers."""
    traced: TracedComm
    """Counts what passes between all ranks."""
    group: Comm
    """What the strategy exchanges through: `traced`, with sums in a fixed order around it where they must be exact."""
    replica: Replica
    strategy: Sync
