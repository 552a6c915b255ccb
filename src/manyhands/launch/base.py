"""The interface of an engine's launcher, and the report of a rank that failed."""

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
from manyhands.errors import ManyhandsError, RankFailed, check
from manyhands.launch.environment import leads, outer_world
from manyhands.launch.failures import agree_in_world
from manyhands.launch.guard.meeting import check_world, world_of
from manyhands.training.job import Job
from manyhands.training.watch import Observer as Observer
from manyhands.training.watch import Watch

Worker = Callable[[Comm, Job, Watch], dict[str, Any]]
"""The function that every rank runs; its result must be plain JSON, since it may come from another process."""


class Launcher(ABC):
    """Starts the ranks of a run and returns their results."""

    features: ClassVar[frozenset[str]]
    """The features of its comm, known before anything is started."""

    @abstractmethod
    def check(self, config: RunConfig) -> None:
        """Raise a `UserError` if this engine cannot run the config."""

    @abstractmethod
    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        """Run the worker on every rank; return their results in rank order."""

    def agree(self, text: str) -> str:
        """Return the text of the process that leads, where several were started from outside."""
        outer = outer_world()
        if outer is None:
            return text
        comm = world_of(outer.engine)
        check_world(comm, outer.size)
        return agree_in_world(comm, text)

    @property
    def leads(self) -> bool:
        """Whether this process prints for all that were started with it."""
        return leads()


def make(engine: str) -> Launcher:
    """Return the launcher of an engine."""
    return registry.find(sys.modules[__package__], Launcher, engine, "engine")()  # type: ignore[type-abstract]


def names() -> list[str]:
    """Return the names of all engines."""
    return registry.names(sys.modules[__package__], Launcher)


def check_one_thread(config: RunConfig) -> None:
    """Refuse `--threads` for an engine whose workers have one thread each."""
    check(config.threads == 1, f"--threads belongs to engine hybrid; use that, or --workers {config.size}")


def failure(error: BaseException, rank: int, step: int) -> ManyhandsError:
    """Return an error that names the rank, host and step, with a traceback unless the error explains itself."""
    if isinstance(error, ManyhandsError):
        return error
    if type(error).__module__.startswith("mpi4py"):
        return PeerLost(f"rank {rank} on {socket.gethostname()} lost another rank: {error}")
    cause = "".join(traceback.format_exception(error)).rstrip()
    return RankFailed(rank=rank, host=socket.gethostname(), step=step, cause=f"{error!r}\n{cause}")
