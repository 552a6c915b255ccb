"""Watch over the processes of a run: show their progress, and see to it that none is left when one dies."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import psutil

from manyhands.comm.torch_ import PeerLost
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, RankFailed
from manyhands.launch.base import Observer, Worker
from manyhands.launch.interrupt import stop_on_signal
from manyhands.launch.live import LiveFolder, read_failures, read_status
from manyhands.launch.starters import Process, Starter
from manyhands.record import Pulse
from manyhands.sync.base import num_ranks
from manyhands.training import Job

POLL_S = 0.05
FAILURE_GRACE_S = 3.0
"""How long the others may take to end after a rank has failed."""
STOP_GRACE_S = 120.0
"""How long ranks may take to finish their step and write a checkpoint after Ctrl-C; a second one ends them at once."""
OUTPUT_LINES = 400
"""How much of what ranks print is kept to explain a failure."""

NEVER = float("inf")


def supervise(worker: Worker, job: Job, observe: Observer, starter: Starter) -> list[dict[str, Any]]:
    """Run the worker in fresh processes; return every rank's result, or raise what went wrong."""
    folder = LiveFolder(job.run)
    folder.open()
    try:
        folder.write_job(job, f"{worker.__module__}:{worker.__qualname__}")
        with stop_on_signal() as stop:
            ranks = _Ranks(num_ranks(job.config), folder, starter)
            try:
                ranks.start(job.config)
                statuses = ranks.wait(observe, stop)
            finally:
                ranks.kill()
        if any(status != 0 for status in statuses):
            raise ranks.failure(statuses)
        return [json.loads(folder.result(rank).read_text()) for rank in range(num_ranks(job.config))]
    finally:
        folder.close()


@final
class _Ranks:
    """The processes of one run."""

    def __init__(self, size: int, folder: LiveFolder, starter: Starter) -> None:
        self._size, self._folder, self._starter = size, folder, starter
        self._processes: list[Process] = []
        self._readers: list[threading.Thread] = []
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._pulses_read = 0

    def start(self, config: RunConfig) -> None:
        """Start them, and show what they print."""
        for process in self._starter.start(config, self._folder):
            self._processes.append(process)
            self._readers.append(threading.Thread(target=self._forward, args=(process,), daemon=True))
            self._readers[-1].start()

    def wait(self, observe: Observer, stop: threading.Event) -> list[int | None]:
        """Follow the run to its end; return the processes' exit statuses, None for those that must be ended."""
        stop_by = fail_by = NEVER
        while None in (statuses := [process.poll() for process in self._processes]):
            time.sleep(POLL_S)
            self._show_new_pulses(observe)
            now = time.monotonic()
            if stop.is_set() and stop_by == NEVER:
                self._folder.stop.touch()
                stop_by = now + STOP_GRACE_S
            if fail_by == NEVER and (any(statuses) or self._someone_failed()):
                fail_by = now + FAILURE_GRACE_S
            if now > fail_by:
                return statuses
            if now > stop_by:
                raise KeyboardInterrupt
        self._show_new_pulses(observe)
        for reader in self._readers:
            reader.join(timeout=1)
        return statuses

    def kill(self) -> None:
        """End whatever is left: the processes' sessions, and the ranks themselves."""
        pids = [s[0] for r in range(self._size) if (s := read_status(self._folder, r))]
        for process in self._processes:
            _kill_group(process.pid)
        for pid in pids:
            _kill_rank(pid, str(self._folder.job.resolve()))
        for process in self._processes:
            process.wait()

    def failure(self, statuses: Sequence[int | None]) -> ManyhandsError:
        """Say which rank failed, where and how."""
        reported = read_failures(self._folder)
        own = [error for error in reported if not isinstance(error, PeerLost)]
        if own:
            return own[0]
        text = "".join(self._output)
        for rank, cause in self._starter.deaths(self._folder, self._size, statuses, text).items():
            _, step, host = read_status(self._folder, rank) or (0, -1, socket.gethostname())
            return RankFailed(rank=rank, host=host, step=step, cause=cause)
        if reported:
            return reported[0]
        tail = text.strip()[-2000:]
        status = next(filter(None, statuses), None)
        return ManyhandsError(f"{self._starter.name} ended with status {status}" + (f":\n{tail}" if tail else ""))

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

    def _forward(self, process: Process) -> None:
        """Show what ranks print, on stderr; mpiexec's own lament is kept for `failure`."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._output.append(line)
                if not self._starter.noise.match(line):
                    print(line, end="", file=sys.stderr, flush=True)


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
