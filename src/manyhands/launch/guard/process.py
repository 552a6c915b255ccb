"""A rank's guard: its parent process, which says how the rank ended when that cannot, and ends the others.

Of a rank that is killed, mpiexec names any, since it kills all others in the same moment and then looks who is dead;
srun lets the others wait for ever; and neither minds a process that ends before MPI_Init. The guard is what mpiexec,
srun or torchrun has started and waits for; it forks the rank, so it alone learns its exit status, before they notice.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final

from manyhands.errors import RankFailed
from manyhands.launch.environment import OuterWorld, started_world
from manyhands.launch.guard.pmi import PmiWire
from manyhands.launch.guard.segments import WaitingMark, sweep
from manyhands.launch.guard.siblings import Siblings, ancestors
from manyhands.launch.guard.state import FailureKnown, Phase, RankState, keep_state
from manyhands.launch.signals.interrupt import die_with_parent

TICK_S = 0.2
"""How often the guard looks around until the ranks have met; afterwards it sleeps."""
MEET_S = 120.0
"""How long ranks may take to start after the first one waits for them, where nothing tells that one has ended."""
KILLED_S = 0.3
"""How long a guard waits before it tells of a killed rank: who kills a whole run kills the guard next."""
LOST_S = 3.0
"""How long a rank that lost another, or aborted, waits before it is told of: the other's guard has more to say."""
SAY_S = 1.0
"""How long mpiexec is given to pass on what a rank has printed: it drops that when it ends the ranks."""
END_S = 5.0
"""How long mpiexec or srun may take to end this process too."""
FAILED, STOPPED = 1, 130

_STARTER_GONE = signal.SIGRTMIN
_STOPS = (signal.SIGINT, signal.SIGTERM)
_PASSED_ON = (*_STOPS, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_WAITED_FOR = (signal.SIGCHLD, _STARTER_GONE, *_PASSED_ON)

Report = Callable[[RankFailed], None]


def start_guard(report: Report) -> None:
    """Go on as a rank in a forked process, if mpiexec, srun or torchrun started this one, which becomes its guard."""
    world = started_world()
    if world is None or not sys.platform.startswith("linux"):
        return
    try:
        state, fd = RankState.share()
    except OSError:  # a sandbox may not allow it; a run is more than its guard
        return
    guard, starter, wire = os.getpid(), os.getppid(), PmiWire.tap()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    sys.stdout.flush()
    sys.stderr.flush()
    rank = os.fork()
    if rank == 0:
        die_with_parent(signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(FAILED)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        keep_state(fd)
        if wire is not None:
            wire.keep_rank()
        return
    status = FAILED
    try:
        status = _Guard(world, state, rank, starter, report, wire).watch()
    except Exception:
        traceback.print_exc()
        status = abs(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
    finally:
        os._exit(status)


def print_failure(failure: RankFailed) -> None:
    """Say it on stderr, in one piece, since guards of several ranks may write there."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"manyhands: {failure}\n".encode())


def cause_of(status: int | None) -> str:
    """Put a process's exit status in words; a negative one is a signal's number."""
    if status is None:
        return "ended by itself"
    if status < 0:
        names = {number.value: f" ({number.name})" for number in signal.Signals}
        return f"killed by signal {-status}{names.get(-status, '')}"
    return f"ended by itself with exit code {status}"


@final
class _Guard:
    """What the parent process does."""

    def __init__(
        self, world: OuterWorld, state: RankState, rank: int, starter: int, report: Report, wire: PmiWire | None
    ) -> None:
        self._world, self._state, self._rank, self._starter, self._report = world, state, rank, starter, report
        self._wire = wire
        if wire is not None:
            wire.keep_guard(lambda: state.known != FailureKnown.NOBODY)
        _rename(f"manyhands-guard of rank {world.rank}, process {rank}")
        die_with_parent(_STARTER_GONE)
        self._siblings, self._mark, self._ancestors = Siblings(), WaitingMark(rank), ancestors()
        self._waits_since = 0.0
        self._stopped = False
        sweep()

    def watch(self) -> int:
        """Wait for the rank's end; return the exit status to end with."""
        while True:
            has_met = self._state.phase >= Phase.MET
            if has_met:
                self._mark.clear()
            info = signal.sigwaitinfo(_WAITED_FOR) if has_met else signal.sigtimedwait(_WAITED_FOR, TICK_S)
            number = info.si_signo if info is not None else 0
            self._stopped |= number in _STOPS
            ended, status = os.waitpid(self._rank, os.WNOHANG)
            if ended:
                return self._after(os.waitstatus_to_exitcode(status))
            if os.getppid() != self._starter:
                self._say(self._world.rank, f"{self._world.by}, which had started it, is gone", self._state.step)
                return self._end(FAILED)
            meets = self._state.phase == Phase.MEETING
            if meets and self._stopped:
                return self._end(STOPPED)
            if info is not None and number in _PASSED_ON and info.si_pid not in (0, *self._ancestors):
                os.kill(self._rank, number)  # who started both sends it to both, and so does a terminal
            if meets and self._world.engine == "mpi" and self._waits_in_vain():
                return self._end(FAILED)

    def _after(self, code: int) -> int:
        """Say how the rank ended unless it is known, and let the others not wait for it."""
        self._mark.clear()
        if code == 0 or (self._stopped and -code in _STOPS):
            return code if code >= 0 else STOPPED
        aborted = -code == signal.SIGABRT or (self._wire is not None and self._wire.aborted)
        if code < 0 or aborted:
            time.sleep(LOST_S if aborted else KILLED_S)
        if code < 0 or self._state.known == FailureKnown.NOBODY:
            self._say(self._world.rank, cause_of(code), self._state.step)
            code = FAILED
        if self._state.known != FailureKnown.RANKS:
            self._end_others(code)
        return code

    def _waits_in_vain(self) -> bool:
        """Say so if a rank of this host has ended, or the others take too long."""
        self._mark.note()
        self._waits_since = self._waits_since or time.monotonic()
        absent = self._siblings.absent()
        failures = dict.fromkeys(absent, "its process ended before the ranks had met")
        if not absent and time.monotonic() - self._waits_since > MEET_S:
            failures = {self._world.rank: f"{MEET_S:.0f} s were not enough for all {self._world.size} ranks to start"}
        if not failures:
            return False
        if not self._siblings.precede(self._world.rank):
            for rank, cause in failures.items():
                self._say(rank, cause)
            if self._state.text:  # what the rank wanted to tell the others when it met them
                self._say(self._world.rank, self._state.text)
            self._end_others(FAILED)
        time.sleep(SAY_S + END_S)  # to be ended by whoever has said it; before that, others would be missed as well
        return True

    def _say(self, rank: int, cause: str, step: int = -1) -> None:
        self._report(RankFailed(rank=rank, host=socket.gethostname(), step=step, cause=cause))

    def _end(self, status: int) -> int:
        """End the rank."""
        self._mark.note()  # what it has mapped since the last look
        with suppress(ProcessLookupError):
            os.kill(self._rank, signal.SIGKILL)
        os.waitpid(self._rank, 0)
        self._mark.clear()
        return status

    def _end_others(self, status: int) -> None:
        """Have mpiexec or srun end all ranks, in the words of MPI_Abort; torchrun does it when this process ends."""
        if self._world.engine == "mpi" and self._world.size > 1:
            time.sleep(SAY_S)
            if self._wire is not None:
                self._wire.abort(status)
                time.sleep(END_S)
            if self._world.by == "srun" and shutil.which("scancel"):
                step = f"{os.environ.get('SLURM_JOB_ID')}.{os.environ.get('SLURM_STEP_ID')}"
                subprocess.run(["scancel", step], check=False)


def _rename(title: str) -> None:
    """Let lists of processes tell the guard from its rank, which has the same command line."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        room = end - start
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
