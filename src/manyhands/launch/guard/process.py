"""A rank's guard: its parent process, which reports how the rank ended when the rank cannot, and ends the others.

When a rank is killed, mpiexec may blame another, since it kills all others at once and only then looks which are dead;
srun lets the others wait for ever; and neither reacts to a process that ends before MPI_Init. The guard is the process
that mpiexec, srun or torchrun has started and waits for; it forks the rank, so it learns the exit status before them.
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
from manyhands.launch.guard.pmi import PMI_FD, PmiRelay
from manyhands.launch.guard.segments import WaitingMark, sweep
from manyhands.launch.guard.siblings import Siblings, ancestors
from manyhands.launch.guard.state import FailureKnown, Phase, RankState, keep_state, share_state
from manyhands.machine.parent import die_with_parent

TICK_S = 0.2
"""How often the guard checks on the other ranks until all have met; afterwards it sleeps until a signal."""
MEET_S = 120.0
"""How long ranks may take to start after this one waits for them, where none is known to have ended."""
KILLED_S = 0.3
"""How long a guard waits before it reports a killed rank: whoever kills a whole run kills the guard next."""
LOST_S = 3.0
"""How long to wait before a rank that aborted or lost another is reported: the other's guard knows the cause."""
SAY_S = 1.0
"""How long mpiexec is given to forward what a rank has printed: it drops that when it ends the ranks."""
END_S = 5.0
"""How long mpiexec or srun may take to end this process too."""
FAILED, STOPPED = 1, 130

_STARTER_GONE = signal.SIGRTMIN
_STOPS = (signal.SIGINT, signal.SIGTERM)
_PASSED_ON = (*_STOPS, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_WAITED_FOR = (signal.SIGCHLD, _STARTER_GONE, *_PASSED_ON)

Report = Callable[[RankFailed], None]


def start_guard(report: Report) -> None:
    """Fork the rank, which returns, if mpiexec, srun or torchrun started this process, which becomes its guard."""
    world = started_world()
    if world is None or not sys.platform.startswith("linux"):
        return
    try:
        state, fd = share_state()
    except OSError:  # a sandbox may not allow it; then the rank runs without a guard
        return
    guard, starter, pmi = os.getpid(), os.getppid(), PmiRelay() if PMI_FD in os.environ else None
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
        if pmi is not None:
            pmi.use_in_rank()
        return
    status = FAILED
    try:
        status = _Guard(world, state, rank, starter, report, pmi).watch()
    except Exception:
        traceback.print_exc()
        status = abs(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
    finally:
        os._exit(status)


def print_failure(failure: RankFailed) -> None:
    """Print a failure on stderr with one system call, since guards of several ranks may write there."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"manyhands: {failure}\n".encode())


def cause_of(status: int) -> str:
    """Return an exit status in words, such as "killed by signal 9 (SIGKILL)" for -9."""
    if status < 0:
        names = {number.value: f" ({number.name})" for number in signal.Signals}
        return f"killed by signal {-status}{names.get(-status, '')}"
    return f"ended by itself with exit code {status}"


@final
class _Guard:
    """Watches the process `rank`, which is this process's child."""

    def __init__(
        self, world: OuterWorld, state: RankState, rank: int, starter: int, report: Report, pmi: PmiRelay | None
    ) -> None:
        self._world, self._state, self._rank, self._starter, self._report = world, state, rank, starter, report
        self._pmi = pmi
        if pmi is not None:
            pmi.start_in_guard(lambda: state.known != FailureKnown.NOBODY)
        _rename(f"manyhands-guard of rank {world.rank}, process {rank}")
        die_with_parent(_STARTER_GONE)
        self._siblings, self._mark, self._ancestors = Siblings(), WaitingMark(rank), ancestors()
        self._waits_since = 0.0
        self._stopped = False
        sweep()

    def watch(self) -> int:
        """Wait until the rank ends; return the exit status for this process."""
        while True:
            has_met = self._state.phase >= Phase.MET
            if has_met:
                self._mark.clear()
            info = signal.sigwaitinfo(_WAITED_FOR) if has_met else signal.sigtimedwait(_WAITED_FOR, TICK_S)
            number = info.si_signo if info is not None else 0
            self._stopped |= number in _STOPS
            ended, status = os.waitpid(self._rank, os.WNOHANG)
            if ended:
                return self._after_exit(os.waitstatus_to_exitcode(status))
            if os.getppid() != self._starter:
                self._fail(self._world.rank, f"{self._world.by}, which had started it, is gone", self._state.step)
                return self._end(FAILED)
            meets = self._state.phase == Phase.MEETING
            if meets and self._stopped:
                return self._end(STOPPED)
            if info is not None and number in _PASSED_ON and info.si_pid not in (0, *self._ancestors):
                os.kill(self._rank, number)  # one from the starter or a terminal reaches the rank without us
            if meets and self._world.engine == "mpi" and self._meeting_failed():
                return self._end(FAILED)

    def _after_exit(self, code: int) -> int:
        """Report how the rank ended unless that is known, and end the others, which would wait for it."""
        self._mark.clear()
        if code == 0 or (self._stopped and -code in _STOPS):
            return code if code >= 0 else STOPPED
        aborted = -code == signal.SIGABRT or (self._pmi is not None and self._pmi.aborted)
        if code < 0 or aborted:
            time.sleep(LOST_S if aborted else KILLED_S)
        if code < 0 or self._state.known == FailureKnown.NOBODY:
            self._fail(self._world.rank, cause_of(code), self._state.step)
            code = FAILED
        if self._state.known != FailureKnown.RANKS:
            self._end_others(code)
        return code

    def _meeting_failed(self) -> bool:
        """Report a rank of this host that has ended before it met the others, or ranks that take too long to start."""
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
                self._fail(rank, cause)
            if text := self._state.text:  # the failure that the rank wanted to share when it met the others
                self._fail(self._world.rank, text.decode(errors="replace"))
            self._end_others(FAILED)
        time.sleep(SAY_S + END_S)  # until the guard that reported ends this one: to leave now looks like a failure
        return True

    def _fail(self, rank: int, cause: str, step: int = -1) -> None:
        self._report(RankFailed(rank=rank, host=socket.gethostname(), step=step, cause=cause))

    def _end(self, status: int) -> int:
        self._mark.note()  # segments that the rank has mapped since the last look
        with suppress(ProcessLookupError):
            os.kill(self._rank, signal.SIGKILL)
        os.waitpid(self._rank, 0)
        self._mark.clear()
        return status

    def _end_others(self, status: int) -> None:
        """Have mpiexec or srun end all ranks, as MPI_Abort would; torchrun does so when this process ends."""
        if self._world.engine == "mpi" and self._world.size > 1:
            time.sleep(SAY_S)
            if self._pmi is not None:
                self._pmi.abort(status)
                time.sleep(END_S)
            if self._world.by == "srun" and shutil.which("scancel"):
                step = f"{os.environ.get('SLURM_JOB_ID')}.{os.environ.get('SLURM_STEP_ID')}"
                subprocess.run(["scancel", step], check=False)


def _rename(title: str) -> None:
    """Change this process's command line, which is the same as its rank's, so that `ps` shows which is the guard."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)
