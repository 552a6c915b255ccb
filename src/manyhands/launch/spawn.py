"""Start the processes of a run, and tell from their exit statuses and their guards which rank died.

All of them are started by one mpiexec, or each as a child of this process.
"""

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
from functools import partial
from pathlib import Path
from typing import ClassVar, final

from manyhands.comm import torch_
from manyhands.config import RunConfig
from manyhands.errors import RankFailed, UserError, check
from manyhands.launch.blas_threads.count import blas_threads
from manyhands.launch.guard.process import cause_of
from manyhands.launch.mailbox import LiveFolder, read_failures, read_status
from manyhands.machine import facts
from manyhands.machine.parent import die_with_parent
from manyhands.sync.base import num_ranks

Process = subprocess.Popen[str]


class Starter(ABC):
    """Starts processes that each run `manyhands.launch.rank`, and finds out which of them died, and how."""

    name: ClassVar[str]
    """The name of a process in messages to the user."""
    engine: ClassVar[str]
    """The `OuterWorld.engine` of equal processes that were started from outside."""
    noise: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """Lines of output that mean nothing to the user."""
    guess: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """Lines that blame a process which may be the wrong one."""

    @abstractmethod
    def start(self, config: RunConfig, folder: LiveFolder) -> Iterator[Process]:
        """Start the processes, each in a new session, so that Ctrl-C reaches only the supervisor."""

    @abstractmethod
    def deaths(self, folder: LiveFolder, statuses: Sequence[int | None]) -> list[RankFailed]:
        """Return the ranks that ended without a report, the one to blame first; `statuses` are the processes'."""


@final
class Mpiexec(Starter):
    """One mpiexec, which starts the ranks on one host or several."""

    name = "mpiexec"
    engine = "mpi"
    noise = re.compile(r"^(=|YOUR APPLICATION|This typically refers|Please see|application called MPI_Abort|Abort\()")
    guess = re.compile(r"^=   PID \d+ RUNNING AT")

    def start(self, config: RunConfig, folder: LiveFolder) -> Iterator[Process]:
        mpiexec = find_mpiexec(config.mpiexec)
        yield _popen([*mpiexec, "-n", str(num_processes(config)), *_rank_command(folder)], config)

    def deaths(self, folder: LiveFolder, statuses: Sequence[int | None]) -> list[RankFailed]:
        """Read the guards' reports: mpiexec's own message may blame any rank that it has killed itself."""
        deaths = [death for death in read_failures(folder, "death") if isinstance(death, RankFailed)]
        return [_dead(folder, death.rank, death.cause, death.host) for death in deaths]


@final
class Children(Starter):
    """One child of this process for each rank, on this host; rank 0 inherits the port at which they meet."""

    name = "a rank"
    engine = "torch"

    def start(self, config: RunConfig, folder: LiveFolder) -> Iterator[Process]:
        with torch_.listen() as listener:  # open before the first rank runs: none comes too early or finds it taken
            place, port = torch_.address_of(listener), listener.fileno()
            command = [*_rank_command(folder), place]
            yield _popen([*command, "0", str(port)], config, inherit=[port])
        for rank in range(1, num_ranks(config)):
            yield _popen([*command, str(rank)], config)

    def deaths(self, folder: LiveFolder, statuses: Sequence[int | None]) -> list[RankFailed]:
        """Find children that ended without a failure or a result; those killed by a signal come first."""
        silent = {
            rank: status
            for rank, status in enumerate(statuses)
            if status is not None and not folder.failure(rank).is_file() and not folder.result(rank).is_file()
        }
        ranks = sorted(silent, key=lambda rank: (silent[rank] >= 0, rank))
        return [_dead(folder, rank, cause_of(silent[rank]), socket.gethostname()) for rank in ranks]


def num_processes(config: RunConfig) -> int:
    """Return how many processes a run has: one per rank, or one per `threads` ranks of a hybrid run."""
    return num_ranks(config) // config.threads


def find_mpiexec(given: str = "") -> list[str]:
    """Return the command that starts MPI ranks: the user's, the one beside this Python, or the one on the path."""
    if given:
        words = shlex.split(given)
        check(bool(shutil.which(words[0])), f"there is no command '{words[0]}' to start MPI ranks with")
        return words
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    path = str(beside) if beside.is_file() else shutil.which("mpiexec")
    if not path:
        raise UserError("engines mpi and hybrid need mpiexec, which is not here; run 'pip install mpich'")
    return [path]


def _dead(folder: LiveFolder, rank: int, cause: str, host: str) -> RankFailed:
    status = read_status(folder, rank)
    return RankFailed(rank=rank, host=host, step=status.step if status else -1, cause=cause)


def _rank_command(folder: LiveFolder) -> list[str]:
    return [sys.executable, "-m", "manyhands.launch.rank", str(folder.job.resolve())]


def _popen(command: list[str], config: RunConfig, inherit: Sequence[int] = ()) -> Process:
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(blas_threads(config, config.size, facts.cores())),
        "MANYHANDS_PATH": json.dumps([p or os.getcwd() for p in sys.path]),
    }
    if num_ranks(config) > facts.cores() and not config.mpiexec:  # which may spread ranks over hosts
        env["MPIR_CVAR_CH4_PROGRESS_THROTTLE"] = "1"  # MPICH's ranks sleep while they wait, not poll: others need cores
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, signal.SIGKILL),  # after SIGTERM, mpiexec would wait for ranks that hang
        pass_fds=inherit,
    )
