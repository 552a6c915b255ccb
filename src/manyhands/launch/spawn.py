"""Start the processes of a run: all of them through one mpiexec, or each as a child of this process."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, final

from manyhands.comm import torch_
from manyhands.config import RunConfig
from manyhands.errors import RankFailed, UserError, check
from manyhands.launch.blas_threads.count import blas_threads
from manyhands.launch.guard.process import cause_of
from manyhands.launch.mailbox import LiveFolder, read_deaths, read_status
from manyhands.launch.rank import World, meet_mpi, meeting
from manyhands.launch.signals.interrupt import die_with_parent
from manyhands.machine import facts
from manyhands.sync.base import num_ranks

Process = subprocess.Popen[str]


class Starter(ABC):
    """Starts processes that each run `manyhands.launch.rank`, and tells from how they ended which rank died."""

    name: ClassVar[str]
    """What the user knows the processes by."""
    engine: ClassVar[str]
    """The engine whose processes, started from outside, have such a `world`."""
    noise: ClassVar[re.Pattern[str]]
    """Lines of output that say nothing to the user."""
    guess: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """Lines that blame a process which may be any."""

    @abstractmethod
    def check(self, config: RunConfig) -> None:
        """Refuse what cannot be started here."""

    @abstractmethod
    def world(self) -> World:
        """Return the comm of the processes that were started from outside, this one among them."""

    @abstractmethod
    def start(self, config: RunConfig, folder: LiveFolder) -> Iterator[Process]:
        """Start them, each the first of a session of its own, so that Ctrl-C reaches only us."""

    @abstractmethod
    def deaths(self, folder: LiveFolder, num_ranks: int, statuses: Sequence[int | None]) -> list[RankFailed]:
        """Return how ranks died that could not say so themselves; the processes' statuses tell."""


@final
class Mpiexec(Starter):
    """One mpiexec, which starts the ranks on one host or several."""

    name = "mpiexec"
    engine = "mpi"
    noise = re.compile(r"^(=|YOUR APPLICATION|This typically refers|Please see|application called MPI_Abort|Abort\()")
    guess = re.compile(r"^=   PID \d+ RUNNING AT")

    def check(self, config: RunConfig) -> None:
        """Refuse where there is no mpiexec."""
        find_mpiexec(config.mpiexec)

    def world(self) -> World:
        """Return MPI's world."""
        return meet_mpi()

    def start(self, config: RunConfig, folder: LiveFolder) -> Iterator[Process]:
        """Start mpiexec."""
        processes = str(num_processes(config))
        yield _popen([*find_mpiexec(config.mpiexec), "-n", processes, *_rank_command(folder)], config)

    def deaths(self, folder: LiveFolder, num_ranks: int, statuses: Sequence[int | None]) -> list[RankFailed]:
        """Read what the ranks' guards have left; mpiexec's own words are of any rank that it killed."""
        deaths = read_deaths(folder)
        return [_dead(folder, death.rank, death.cause, death.host) for death in deaths]


@final
class Children(Starter):
    """One child of this process for each rank, on this host; rank 0 inherits the port at which they meet."""

    name = "a rank"
    engine = "torch"
    noise = re.compile(r"(?!)")

    def check(self, config: RunConfig) -> None:
        """Allow all: every host can start processes."""

    def world(self) -> World:
        """Return torchrun's world."""
        with meeting():
            return torch_.world(os.environ["MASTER_ADDR"], os.environ.get("GLOO_SOCKET_IFNAME", ""))

    def start(self, config: RunConfig, folder: LiveFolder) -> Iterator[Process]:
        """Start them; the port is open before the first one runs, so none can come too early or find it taken."""
        with torch_.listen() as listener:
            place, port = torch_.address_of(listener), listener.fileno()
            command = [*_rank_command(folder), place]
            yield _popen([*command, "0", str(port)], config, inherit=[port])
        for rank in range(1, num_ranks(config)):
            yield _popen([*command, str(rank)], config)

    def deaths(self, folder: LiveFolder, num_ranks: int, statuses: Sequence[int | None]) -> list[RankFailed]:
        """Look for children that ended without a failure or a result; those killed by a signal come first."""
        silent = {
            rank: status
            for rank, status in enumerate(statuses)
            if status is not None and not folder.failure(rank).is_file() and not folder.result(rank).is_file()
        }
        ranks = sorted(silent, key=lambda rank: (silent[rank] >= 0, rank))
        return [_dead(folder, rank, cause_of(silent[rank]), socket.gethostname()) for rank in ranks]


def world_of(engine: str) -> World:
    """Return the comm of the processes that were started from outside for this engine."""
    return {starter.engine: starter for starter in (Mpiexec(), Children())}[engine].world()


def num_processes(config: RunConfig) -> int:
    """Return how many processes a run has: one for each rank, or for the threads of a hybrid one together."""
    return num_ranks(config) // config.threads


def find_mpiexec(given: str = "") -> list[str]:
    """Return the command that starts ranks: the user's, the one beside this Python, or the one on the path."""
    if given:
        words = shlex.split(given)
        check(bool(shutil.which(words[0])), f"there is no command '{words[0]}' to start MPI ranks with")
        return words
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(beside) if beside.is_file() else shutil.which("mpiexec")
    if not found:
        raise UserError("engines mpi and hybrid need mpiexec, which is not here; run 'pip install mpich'")
    return [found]


def _dead(folder: LiveFolder, rank: int, cause: str, host: str) -> RankFailed:
    _, step, _ = read_status(folder, rank) or (0, -1, "")
    return RankFailed(rank=rank, host=host, step=step, cause=cause)


def _rank_command(folder: LiveFolder) -> list[str]:
    return [sys.executable, "-m", "manyhands.launch.rank", str(folder.job.resolve())]


def _popen(command: list[str], config: RunConfig, inherit: Sequence[int] = ()) -> Process:
    threads = blas_threads(config, config.size, facts.cores())
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            **_patience(config),
            "MANYHANDS_PATH": json.dumps([p or os.getcwd() for p in sys.path]),
        },
        start_new_session=True,
        preexec_fn=_die_with_parent,
        pass_fds=inherit,
    )


def _patience(config: RunConfig) -> dict[str, str]:
    """Let MPICH's ranks sleep while they wait, where they are more than the cores: one that polls keeps others out."""
    crowded = num_ranks(config) > facts.cores() and not config.mpiexec  # which may spread them over hosts
    return {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1"} if crowded else {}


def _die_with_parent() -> None:
    """Have the kernel end the process should this one be killed; SIGTERM would let mpiexec wait for ranks that hang."""
    die_with_parent(signal.SIGKILL)
