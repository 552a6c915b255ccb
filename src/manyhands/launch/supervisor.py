"""Watch over the processes of a run: show their progress, and see to it that none is left when one dies."""

import contextlib
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import psutil

from manyhands.comm.torch_ import PeerLost
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError
from manyhands.launch.base import Observer, Worker
from manyhands.launch.guard.process import cause_of
from manyhands.launch.guard.segments import sweep
from manyhands.launch.mailbox import LiveFolder, failure_in, read_failures, read_pulse, read_status
from manyhands.launch.signals.interrupt import stop_on_signal, tell
from manyhands.launch.signals.waiting import Patience, follow
from manyhands.launch.spawn import Process, Starter
from manyhands.sync.base import num_ranks
from manyhands.training.job import Job

POLL_S = 0.05
FAILURE_GRACE_S = 3.0
"""How long the others may take to end after a rank has failed."""
END_S = 2.0
"""How long killed processes may take to be gone."""
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
            ranks = _RankProcesses(num_ranks(job.config), folder, starter)
            try:
                ranks.start(job.config)
                statuses = ranks.wait(observe, stop, patience_with(folder, job))
            finally:
                ranks.kill()
        if any(status != 0 for status in statuses):
            raise ranks.failure(statuses)
        return ranks.results()
    finally:
        folder.close()


def patience_with(folder: LiveFolder, job: Job) -> Patience:
    """Follow the workers' steps through the live folder."""

    def steps() -> list[int]:
        return [status[1] if (status := read_status(folder, r)) else -1 for r in range(job.config.size)]

    return follow(steps, job.run.checkpoints)


@final
class _RankProcesses:
    """The processes of one run."""

    def __init__(self, size: int, folder: LiveFolder, starter: Starter) -> None:
        self._size, self._folder, self._starter = size, folder, starter
        self._processes: list[Process] = []
        self._readers: list[threading.Thread] = []
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._told: list[ManyhandsError] = []
        """Failures of ranks that could not write them into the folder."""
        self._pulses_read = 0

    def start(self, config: RunConfig) -> None:
        """Start them, and show what they print."""
        for process in self._starter.start(config, self._folder):
            self._processes.append(process)
            self._readers.append(threading.Thread(target=self._forward, args=(process,), daemon=True))
            self._readers[-1].start()

    def wait(self, observe: Observer, stop: threading.Event, patience: Patience) -> list[int | None]:
        """Follow the run to its end; return the processes' exit statuses, None for those that must be ended."""
        fail_by = NEVER
        while None in (statuses := [process.poll() for process in self._processes]):
            time.sleep(POLL_S)
            self._show_new_pulses(observe)
            now = time.monotonic()
            if stop.is_set() and not self._have_met():
                raise KeyboardInterrupt  # nobody is there yet who could finish a step
            if stop.is_set() and not self._folder.stop.exists():
                self._folder.ask_to_stop()
            if patience.look(stop=stop.is_set()):
                patience.give_up()
            if fail_by == NEVER and (any(statuses) or self._someone_failed()):
                fail_by = now + FAILURE_GRACE_S
            if now > fail_by:
                return statuses
        self._show_new_pulses(observe)
        for reader in self._readers:
            reader.join(timeout=1)
        return statuses

    def kill(self) -> None:
        """End whatever is left: the processes' sessions, and the ranks themselves."""
        pids = [s[0] for r in range(self._size) if (s := read_status(self._folder, r))]
        started = [child for process in self._processes for child in _descendants(process.pid)]
        for process in self._processes:
            _kill_group(process.pid)
        for pid in pids:
            _kill_rank(pid, str(self._folder.job.resolve()))
        for process in self._processes:
            process.wait()
        psutil.wait_procs(started, timeout=END_S)  # mpiexec's helpers end the ranks when it is gone
        sweep()

    def results(self) -> list[dict[str, Any]]:
        """Return what the ranks have left."""
        files = [self._folder.result(rank) for rank in range(self._size)]
        missing = [str(rank) for rank, file in enumerate(files) if not file.is_file()]
        if missing:
            raise ManyhandsError(f"{self._starter.name} ended well, but ranks {', '.join(missing)} left no result")
        return [json.loads(file.read_text()) for file in files]

    def failure(self, statuses: Sequence[int | None]) -> ManyhandsError:
        """Say which rank failed, where and how."""
        reported = [*read_failures(self._folder), *self._told]
        own = [error for error in reported if not isinstance(error, PeerLost)]
        if own:
            return own[0]
        deaths = self._starter.deaths(self._folder, self._size, statuses)
        if deaths:
            return deaths[0]
        if reported:
            return reported[0]
        tail = "".join(line for line in self._output if not self._starter.guess.match(line)).strip()[-2000:]
        status = next(filter(None, statuses), None)
        how = f"was {cause_of(status)}" if status is not None and status < 0 else f"ended with status {status}"
        return ManyhandsError(f"{self._starter.name} {how}" + (f":\n{tail}" if tail else ""))

    def _someone_failed(self) -> bool:
        named = ("failure-*.json", "death-*.json")
        return bool(self._told) or any(next(self._folder.path.glob(name), None) for name in named)

    def _have_met(self) -> bool:
        return all(self._folder.rank(rank).is_file() for rank in range(self._size))

    def _show_new_pulses(self, observe: Observer) -> None:
        if not self._folder.pulses.is_file():
            return
        with open(self._folder.pulses, "rb") as f:
            f.seek(self._pulses_read)
            whole = f.read().rpartition(b"\n")[0]
        if whole:
            self._pulses_read += len(whole) + 1
            for line in whole.split(b"\n"):
                if pulse := read_pulse(line):
                    observe(pulse)

    def _forward(self, process: Process) -> None:
        """Show what ranks print, on stderr; mpiexec's own words are kept for `failure`."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if told := failure_in(line):
                    self._told.append(told)
                    continue
                self._output.append(line)
                if not self._starter.noise.match(line):
                    tell(line, end="")  # whether or not anybody reads it: the ranks must not wait for that


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        return children
    except psutil.Error:
        return []


def _kill_rank(pid: int, job: str) -> None:
    """End a rank that outlived mpiexec; its command line guards against a number used again."""
    try:
        process = psutil.Process(pid)
        if job in process.cmdline():
            process.kill()
    except psutil.Error:
        pass
