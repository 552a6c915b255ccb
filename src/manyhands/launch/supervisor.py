"""Watch the processes of a run: forward their output and progress, find the rank to blame, leave no process behind."""

import json
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, final

import psutil

from manyhands.comm.torch_ import PeerLost
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError
from manyhands.launch.base import Observer, Worker
from manyhands.launch.guard.process import cause_of
from manyhands.launch.guard.segments import sweep
from manyhands.launch.mailbox import LiveFolder, Tail, failure_in, live_folder, read_failures, read_status, show_pulses
from manyhands.launch.signals.interrupt import stop_on_signal, tell
from manyhands.launch.signals.waiting import StopMonitor
from manyhands.launch.spawn import Process, Starter
from manyhands.sync.base import num_ranks
from manyhands.training.job import Job

POLL_S = 0.05
FAILURE_GRACE_S = 3.0
"""How long the others may take to end after a rank has failed."""
END_S = 2.0
"""How long killed processes may take to be gone."""
OUTPUT_LINES = 400
"""The last lines of the ranks' output that are kept to explain a failure."""


def supervise(worker: Worker, job: Job, observe: Observer, starter: Starter) -> list[dict[str, Any]]:
    """Run the worker in new processes; return every rank's result, or raise the failure that ended the run."""
    with live_folder(job, worker) as folder:
        with stop_on_signal() as stop:
            ranks = _RankProcesses(num_ranks(job.config), folder, starter)
            try:
                ranks.start(job.config)
                statuses = ranks.wait(observe, stop, stop_monitor(folder, job, stop))
            finally:
                ranks.kill()
        if any(status != 0 for status in statuses):
            raise ranks.failure(statuses)
        return ranks.results()


def stop_monitor(folder: LiveFolder, job: Job, stop: threading.Event) -> StopMonitor:
    """Return a monitor that reads the workers' steps from the live folder."""

    def steps() -> list[int]:
        return [status.step if (status := read_status(folder, rank)) else -1 for rank in range(job.config.size)]

    return StopMonitor(steps, job.run.checkpoints, stop)


def by_blame(failures: Iterable[ManyhandsError]) -> list[ManyhandsError]:
    """Return the failures of ranks that only lost another rank after those that explain why it was lost."""
    return sorted(failures, key=lambda error: isinstance(error, PeerLost))


@final
class _RankProcesses:
    """The processes of one run."""

    def __init__(self, size: int, folder: LiveFolder, starter: Starter) -> None:
        self._size, self._folder, self._starter = size, folder, starter
        self._processes: list[Process] = []
        self._readers: list[threading.Thread] = []
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._printed_failures: list[ManyhandsError] = []
        """Failures of ranks that could not write them into the folder."""
        self._pulses = Tail(folder.pulses)

    def start(self, config: RunConfig) -> None:
        """Start the processes, and a thread for each that forwards its output."""
        for process in self._starter.start(config, self._folder):
            self._processes.append(process)
            self._readers.append(threading.Thread(target=self._forward, args=(process,), daemon=True))
            self._readers[-1].start()

    def wait(self, observe: Observer, stop: threading.Event, monitor: StopMonitor) -> list[int | None]:
        """Follow the run to its end; return the processes' exit statuses, None for those that must be killed."""
        fail_by = math.inf
        while None in (statuses := [process.poll() for process in self._processes]):
            time.sleep(POLL_S)
            show_pulses(self._pulses, observe)
            now = time.monotonic()
            if stop.is_set():
                if not all(self._folder.rank(rank).is_file() for rank in range(self._size)):
                    raise KeyboardInterrupt  # the ranks have not met yet, so none can finish a step
                self._folder.ask_to_stop()
            monitor.look_or_give_up()
            if fail_by == math.inf and (any(statuses) or self._is_failure_reported()):
                fail_by = now + FAILURE_GRACE_S
            if now > fail_by:
                return statuses
        show_pulses(self._pulses, observe)
        for reader in self._readers:
            reader.join(timeout=1)
        return statuses

    def kill(self) -> None:
        """Kill all that is left: the processes' sessions, and the ranks themselves."""
        pids = [status.pid for rank in range(self._size) if (status := read_status(self._folder, rank))]
        descendants: list[psutil.Process] = []
        for process in self._processes:
            with suppress(psutil.Error):
                descendants += psutil.Process(process.pid).children(recursive=True)
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for pid in pids:
            with suppress(psutil.Error):
                rank = psutil.Process(pid)
                if str(self._folder.job.resolve()) in rank.cmdline():  # another process may have the number by now
                    rank.kill()
        for process in self._processes:
            process.wait()
        psutil.wait_procs(descendants, timeout=END_S)  # mpiexec's helpers end the ranks when it is gone
        sweep()

    def results(self) -> list[dict[str, Any]]:
        """Return the results that the ranks have written."""
        files = [self._folder.result(rank) for rank in range(self._size)]
        missing = [str(rank) for rank, file in enumerate(files) if not file.is_file()]
        if missing:
            raise ManyhandsError(f"{self._starter.name} ended well, but ranks {', '.join(missing)} left no result")
        return [json.loads(file.read_text()) for file in files]

    def failure(self, statuses: Sequence[int | None]) -> ManyhandsError:
        """Return the failure that ended the run: the rank to blame, its host and step, and the cause."""
        reported = by_blame([*read_failures(self._folder), *self._printed_failures])
        if reported and not isinstance(reported[0], PeerLost):
            return reported[0]
        if failures := [*self._starter.deaths(self._folder, statuses), *reported]:
            return failures[0]
        tail = "".join(line for line in self._output if not self._starter.guess.match(line)).strip()[-2000:]
        status = next(filter(None, statuses), None)
        how = f"was {cause_of(status)}" if status is not None and status < 0 else f"ended with status {status}"
        return ManyhandsError(f"{self._starter.name} {how}" + (f":\n{tail}" if tail else ""))

    def _is_failure_reported(self) -> bool:
        reports = (any(self._folder.path.glob(f"{kind}-*.json")) for kind in ("failure", "death"))
        return bool(self._printed_failures) or any(reports)

    def _forward(self, process: Process) -> None:
        """Print the process's output on stderr, except mpiexec's own messages, and keep it for `failure`."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if error := failure_in(line):
                    self._printed_failures.append(error)
                    continue
                self._output.append(line)
                if not self._starter.noise.match(line):
                    tell(line, end="")  # whether or not anybody reads it: the ranks must not wait for that
