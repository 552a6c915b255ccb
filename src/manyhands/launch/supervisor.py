"""Start MPI ranks, show their progress, and see to it that none is left when one dies."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, final

import psutil

from manyhands import facts
from manyhands.errors import ManyhandsError, RankFailed, UserError, check
from manyhands.launch.base import Observer, Worker
from manyhands.launch.cores import blas_threads
from manyhands.launch.interrupt import die_with_parent, stop_on_signal
from manyhands.launch.live import LiveFolder, read_failures, read_status
from manyhands.record import Pulse
from manyhands.training import Job

POLL_S = 0.05
FAILURE_GRACE_S = 3.0
"""How long the others may take to end after a rank has failed."""
STOP_GRACE_S = 120.0
"""How long ranks may take to finish their step and write a checkpoint after Ctrl-C; a second one ends them at once."""
OUTPUT_LINES = 400
"""How much of what ranks print is kept to explain a failure."""

_NOISE = re.compile(r"^(=|YOUR APPLICATION|This typically refers|Please see|application called MPI_Abort|Abort\()")
_DEATH = re.compile(r"PID (\d+) RUNNING AT (\S+)")


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


def supervise(worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
    """Run the worker in fresh MPI processes; return every rank's result, or raise what went wrong."""
    folder = LiveFolder(job.run)
    folder.open()
    try:
        folder.write_job(job, f"{worker.__module__}:{worker.__qualname__}")
        with stop_on_signal() as stop:
            ranks = _Ranks(job, folder)
            try:
                status = ranks.wait(observe, stop)
            finally:
                ranks.kill()
        if status != 0:
            raise ranks.failure(status)
        return [json.loads(folder.result(rank).read_text()) for rank in range(job.config.size)]
    finally:
        folder.close()


@final
class _Ranks:
    """The processes of one run, under one mpiexec in a session of its own, so that Ctrl-C reaches only us."""

    def __init__(self, job: Job, folder: LiveFolder) -> None:
        self._config, self._folder = job.config, folder
        command = [
            *find_mpiexec(job.config.mpiexec),
            *("-n", str(job.config.workers)),
            *(sys.executable, "-m", "manyhands.launch.rank", str(folder.job.resolve())),
        ]
        threads = blas_threads(job.config, job.config.size, facts.cores())
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MANYHANDS_PATH": json.dumps([p or os.getcwd() for p in sys.path]),
        }
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._reader = threading.Thread(target=self._forward, daemon=True)
        self._reader.start()
        self._pulses_read = 0

    def wait(self, observe: Observer, stop: threading.Event) -> int:
        """Follow the run to its end; return mpiexec's exit status."""
        stop_by = fail_by = float("inf")
        while (status := self._process.poll()) is None:
            time.sleep(POLL_S)
            self._show_new_pulses(observe)
            now = time.monotonic()
            if stop.is_set() and stop_by == float("inf"):
                self._folder.stop.touch()
                stop_by = now + STOP_GRACE_S
            if fail_by == float("inf") and self._someone_failed():
                fail_by = now + FAILURE_GRACE_S
            if now > fail_by:
                return 1
            if now > stop_by:
                raise KeyboardInterrupt
        self._show_new_pulses(observe)
        self._reader.join(timeout=1)
        return status

    def kill(self) -> None:
        """End whatever is left: mpiexec's session, and the ranks themselves."""
        pids = [s[0] for r in range(self._config.size) if (s := read_status(self._folder, r))]
        _kill_group(self._process.pid)
        for pid in pids:
            _kill_rank(pid, str(self._folder.job.resolve()))
        self._process.wait()

    def failure(self, status: int) -> ManyhandsError:
        """Say which rank failed, where and how."""
        reported = read_failures(self._folder)
        if reported:
            return reported[0]
        text = "".join(self._output)
        died = _DEATH.search(text)
        for rank in range(self._config.size):
            status_of_rank = read_status(self._folder, rank)
            if died and status_of_rank and status_of_rank[0] == int(died[1]):
                _, step, host = status_of_rank
                return RankFailed(rank=rank, host=host, step=step, cause=_cause(text))
        silent = [r for r in range(self._config.size) if not self._folder.result(r).is_file()]
        if silent and (status_of_rank := read_status(self._folder, silent[0])):
            _, step, host = status_of_rank
            return RankFailed(rank=silent[0], host=host, step=step, cause=f"ended by itself with exit code {status}")
        tail = text.strip()[-2000:]
        return ManyhandsError(f"mpiexec ended with status {status}" + (f":\n{tail}" if tail else ""))

    def _someone_failed(self) -> bool:
        return any(self._folder.path.glob("failure-*.json"))

    def _show_new_pulses(self, observe: Observer) -> None:
        if not self._folder.pulses.is_file():
            return
        with open(self._folder.pulses, "rb") as f:
            f.seek(self._pulses_read)
            whole = f.read().rpartition(b"\n")[0]
        if whole:
            self._pulses_read += len(whole) + 1
            for line in whole.split(b"\n"):
                observe(Pulse.model_validate_json(line))

    def _forward(self) -> None:
        """Show what ranks print, on stderr; mpiexec's own lament is kept for `failure`."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._output.append(line)
                if not _NOISE.match(line):
                    print(line, end="", file=sys.stderr, flush=True)


def _cause(text: str) -> str:
    killed = re.search(r"\(signal (\d+)\)", text)
    if killed:
        return f"killed by signal {killed[1]} ({signal.Signals(int(killed[1])).name})"
    ended = re.search(r"EXIT CODE: (\d+)", text)
    return f"ended by itself with exit code {ended[1]}" if ended else "ended by itself"


def _die_with_parent() -> None:
    """Have the kernel end mpiexec should this process be killed; SIGTERM would let it wait for ranks that hang."""
    die_with_parent(signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _kill_rank(pid: int, job: str) -> None:
    """End a rank that outlived mpiexec; its command line guards against a number used again."""
    try:
        process = psutil.Process(pid)
        if job in process.cmdline():
            process.kill()
    except psutil.Error:
        pass
