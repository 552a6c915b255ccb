"""The live folder of a run: files through which ranks, their guards and the supervisor tell each other how it goes.

Plain files, so that it works across hosts. A rank's guard imports this module before torch, which takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from pydantic import ValidationError

from manyhands.config import RunConfig
from manyhands.errors import Diverged, ManyhandsError, RankFailed, Stopped, UserError
from manyhands.launch.signals.stops import STOPS
from manyhands.record.files import write_atomically, writing
from manyhands.record.run import Pulse, RunDir
from manyhands.training.watch import Observer, Watch

if TYPE_CHECKING:
    from manyhands.launch.base import Worker
    from manyhands.training.job import Job

TRIES, PAUSE_S = 20, 0.05
"""How often to try to remove the folder, and the pause between two attempts, while a rank still writes there."""
FAILURE_LINE = "manyhands-failure: "
"""Start of the line on stderr by which a rank reports its failure when it cannot write files."""


@final
class LiveFolder:
    """The paths of the files in the live folder of a run."""

    def __init__(self, run: RunDir) -> None:
        self.path = run.live
        self.job = self.path / "job.json"
        self.pulses = self.path / "pulses.jsonl"
        self.stop = self.path / "stop"

    def rank(self, rank: int) -> Path:
        """Return the file in which a rank keeps its process id, step and host."""
        return self.path / f"rank-{rank}"

    def result(self, rank: int) -> Path:
        """Return the file with the result of a rank's worker."""
        return self.path / f"result-{rank}.json"

    def output(self, rank: int) -> Path:
        """Return the file with what a rank of engine ray prints."""
        return self.path / f"output-{rank}.txt"

    def failure(self, rank: int) -> Path:
        """Return the file in which a rank reports its failure."""
        return self.path / f"failure-{rank}.json"

    def death(self, rank: int) -> Path:
        """Return the file in which a guard reports that a rank ended without a report."""
        return self.path / f"death-{rank}.json"

    def open(self) -> None:
        """Make an empty folder, whatever was there."""
        self.close()
        with writing(self.path):
            self.path.mkdir(parents=True)

    def ask_to_stop(self) -> None:
        """Tell the ranks to end the run after the current step."""
        if not self.stop.exists():
            with writing(self.stop):
                self.stop.touch()

    def close(self) -> None:
        """Remove the folder and all files; a rank that is being killed may still write there."""
        for _ in range(TRIES):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                return
            time.sleep(PAUSE_S)


@contextlib.contextmanager
def live_folder(job: Job, worker: Worker) -> Iterator[LiveFolder]:
    """Make the live folder of a run with the job for its ranks; remove it at the end."""
    folder = LiveFolder(job.run)
    folder.open()
    try:
        values = {
            "worker": f"{worker.__module__}:{worker.__qualname__}",
            "config": job.config.model_dump(),
            "resume": job.resume,
            "keep_weights": job.keep_weights,
            "warnings": job.warnings,
            "extra": job.extra,
        }
        write_atomically(folder.job, json.dumps(values))
        yield folder
    finally:
        folder.close()


def read_job(path: Path) -> tuple[Job, str]:
    """Return the job of this rank, and its worker function as `module:name`."""
    from manyhands.training.job import Job

    values = json.loads(path.read_text())
    config, run = RunConfig.model_validate(values["config"]), RunDir(path.parent.parent)
    warnings = tuple(values["warnings"])
    return Job(config, run, values["resume"], values["keep_weights"], warnings, extra=values["extra"]), values["worker"]


def writing_death(job: Path) -> Callable[[RankFailed], None]:
    """Return a function that reports the death of one of a job's processes, under the first of its ranks."""
    folder, threads = LiveFolder(RunDir(job.parent.parent)), json.loads(job.read_text())["config"]["threads"]

    def write(death: RankFailed) -> None:
        rank = death.rank * threads
        write_failure(folder.death(rank), RankFailed(rank=rank, host=death.host, step=death.step, cause=death.cause))

    return write


def write_failure(path: Path, error: ManyhandsError) -> None:
    """Report a failure to the supervisor: in a file of the live folder, or on stderr if that cannot be written."""
    text = json.dumps(failure_values(error))
    try:
        write_atomically(path, text)
    except OSError:
        with contextlib.suppress(OSError):  # what Ray's ranks print goes to the same disk
            print(f"{FAILURE_LINE}{text}", file=sys.stderr, flush=True)


def read_failures(folder: LiveFolder, kind: str = "failure") -> list[ManyhandsError]:
    """Return what was reported, the first report first: by ranks, or with kind "death" by their guards."""
    files = sorted(folder.path.glob(f"{kind}-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [failure_of(json.loads(file.read_text())) for file in files]


def failure_in(line: str) -> ManyhandsError | None:
    """Return the failure that a line of a rank's output reports, if it does."""
    _, mark, text = line.partition(FAILURE_LINE)  # mpiexec may put the rank before it
    with contextlib.suppress(ValueError):
        return failure_of(json.loads(text)) if mark else None
    return None


def failure_values(error: ManyhandsError) -> dict[str, Any]:
    """Return a failure as plain JSON."""
    values: dict[str, Any] = {"kind": type(error).__name__, "says": str(error)}
    if isinstance(error, RankFailed):
        values.update(rank=error.rank, host=error.host, step=error.step, cause=error.cause)
    return values


def failure_of(values: dict[str, Any]) -> ManyhandsError:
    """Return the failure that `failure_values` described."""
    if values["kind"] == "RankFailed":
        return RankFailed(**{k: values[k] for k in ("rank", "host", "step", "cause")})
    from manyhands.comm.torch_ import PeerLost

    kinds: tuple[type[ManyhandsError], ...] = (UserError, Diverged, PeerLost, Stopped)
    return {kind.__name__: kind for kind in kinds}.get(values["kind"], ManyhandsError)(values["says"])


_STATUS = struct.Struct("<qq64s")


class RankStatus(NamedTuple):
    """What a rank keeps in its file."""

    pid: int
    step: int
    host: str


@final
class LiveWatch(Watch):
    """Watches one rank of a process that a supervisor started: the step goes to a file, which stays open.

    The file is not mapped into memory: on a full disk, or when somebody truncates the file, that kills the process.
    """

    def __init__(self, folder: LiveFolder, rank: int, stop: threading.Event | None = None) -> None:
        self._folder, self._stop, self.step = folder, stop or threading.Event(), -1
        with writing(folder.rank(rank)):
            self._file = os.open(folder.rank(rank), os.O_RDWR | os.O_CREAT, 0o644)
            weakref.finalize(self, os.close, self._file)
            os.pwrite(self._file, _STATUS.pack(os.getpid(), -1, socket.gethostname().encode()[:64]), 0)

    def at(self, step: int) -> None:
        self.step = step
        with contextlib.suppress(OSError):
            os.pwrite(self._file, struct.pack("<q", step), 8)

    def stop_asked(self) -> bool:
        return self._stop.is_set() or self._folder.stop.exists()

    def pulse(self, pulse: Pulse) -> None:
        with contextlib.suppress(OSError), open(self._folder.pulses, "a") as f:  # a run goes on on a full disk
            f.write(pulse.model_dump_json() + "\n")


def stop_on_signals() -> threading.Event:
    """Return an event that is set by the signals which batch systems send before the time limit; ignore SIGINT."""
    stop = threading.Event()
    for number in STOPS:
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return stop


def read_status(folder: LiveFolder, rank: int) -> RankStatus | None:
    """Return a rank's process id, last step and host; None if the rank has not started yet."""
    path = folder.rank(rank)
    if not path.is_file() or path.stat().st_size < _STATUS.size:
        return None
    pid, step, host = _STATUS.unpack(path.read_bytes()[: _STATUS.size])
    return RankStatus(pid, step, host.rstrip(b"\0").decode(errors="replace"))


@final
class Tail:
    """A text file that grows, read line by line."""

    def __init__(self, path: Path) -> None:
        self._path, self._num_read = path, 0

    def lines(self) -> list[str]:
        """Return the complete lines that are new since the last call."""
        if not self._path.is_file():
            return []
        with open(self._path, "rb") as f:
            f.seek(self._num_read)
            complete, end, _ = f.read().rpartition(b"\n")
        self._num_read += len(complete) + len(end)
        return complete.decode(errors="replace").split("\n") if end else []


def show_pulses(pulses: Tail, observe: Observer) -> None:
    """Call `observe` with each new pulse of the pulses' file, except one that a full disk has cut off."""
    for line in pulses.lines():
        try:
            pulse = Pulse.model_validate_json(line)
        except ValidationError:
            continue
        observe(pulse)
