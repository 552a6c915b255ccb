"""The protocol of a launcher."""

import socket
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from manyhands import registry
from manyhands.comm import Comm
from manyhands.comm.torch_ import PeerLost
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, RankFailed
from manyhands.training.job import Job
from manyhands.training.watch import Observer as Observer
from manyhands.training.watch import Watch

Worker = Callable[[Comm, Job, Watch], dict[str, Any]]
"""What every rank runs; its result must be plain JSON, since it may come from another process."""


class Launcher(ABC):
    """Starts the ranks of a run and brings back what they return."""

    features: ClassVar[frozenset[str]]
    """What its comm can do, known before anything is started."""

    @abstractmethod
    def check(self, config: RunConfig) -> None:
        """Refuse, in one sentence, a config that this engine cannot run."""

    @abstractmethod
    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        """Run the worker on every rank; return their results in rank order."""

    def agree(self, text: str) -> str:
        """Return the text of the process that leads, where several were started from outside."""
        return text

    @property
    def leads(self) -> bool:
        """Whether this process speaks to the user."""
        return True


def make(engine: str) -> Launcher:
    """Return the launcher of an engine."""
    return registry.find(sys.modules[__package__], Launcher, engine, "engine")()  # type: ignore[type-abstract]


def names() -> list[str]:
    """List the engines."""
    return registry.names(sys.modules[__package__], Launcher)


def failure(error: BaseException, rank: int, step: int) -> ManyhandsError:
    """Say who failed and where; what manyhands explains by itself needs no traceback."""
    if isinstance(error, ManyhandsError):
        return error
    if type(error).__module__.startswith("mpi4py"):
        return PeerLost(f"rank {rank} on {socket.gethostname()} lost another rank: {error}")
    cause = "".join(traceback.format_exception(error)).rstrip()
    return RankFailed(rank=rank, host=socket.gethostname(), step=step, cause=f"{error!r}\n{cause}")
