"""The live folder of a run: ranks report there, the supervisor listens. Plain files, so it works across hosts.

A rank's guard needs it before torch, which takes seconds, is imported.
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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from pydantic import ValidationError

from manyhands.config import RunConfig
from manyhands.errors import Diverged, ManyhandsError, RankFailed, Stopped, UserError
from manyhands.launch.signals.stops import STOPS
from manyhands.record import Pulse, RunDir, write_atomically
from manyhands.record.files import writing

if TYPE_CHECKING:
    from manyhands.training.job import Job

TRIES, PAUSE_S = 20, 0.05
"""How often the folder is removed again, and after how long, while somebody still writes there."""
FAILURE_LINE = "manyhands-failure: "
"""What a line on stderr begins with by which a rank reports its failure when it cannot write files."""


@final
class LiveFolder:
    """Names and formats of the files."""

    def __init__(self, run: RunDir) -> None:
        self.path = run.live
        self.job = self.path / "job.json"
        self.pulses = self.path / "pulses.jsonl"
        self.stop = self.path / "stop"

    def rank(self, rank: int) -> Path:
        """Where a rank says its process id, host and step."""
        return self.path / f"rank-{rank}"

    def result(self, rank: int) -> Path:
        """Where a rank leaves what it returns."""
        return self.path / f"result-{rank}.json"

    def failure(self, rank: int) -> Path:
        """Where a rank says why it failed."""
        return self.path / f"failure-{rank}.json"

    def death(self, rank: int) -> Path:
        """Where a rank's guard says how it ended."""
        return self.path / f"death-{rank}.json"

    def open(self) -> None:
        """Make an empty folder, whatever was there."""
        self.close()
        with writing(self.path):
            self.path.mkdir(parents=True)

    def ask_to_stop(self) -> None:
        """Let the ranks know that the run is to end after the step."""
        with writing(self.stop):
            self.stop.touch()

    def close(self) -> None:
        """Remove it with all that is in it, where a rank that is just being ended may still write."""
        for _ in range(TRIES):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                return
            time.sleep(PAUSE_S)

    def write_job(self, job: Job, worker: str) -> None:
        """Write what the ranks are to do."""
        text = json.dumps(
            {
                "worker": worker,
                "config": job.config.model_dump(),
                "resume": job.resume,
                "keep_weights": job.keep_weights,
                "warnings": job.warnings,
                "extra": job.extra,
            }
        )
        write_atomically(self.job, text)


def read_job(path: Path) -> tuple[Job, str]:
    """Read what this rank is to do, and the name of the worker function."""
    from manyhands.training.job import Job

    values = json.loads(path.read_text())
    run = RunDir(path.parent.parent)
    config = RunConfig.model_validate(values["config"])
    given = (values["resume"], values["keep_weights"], tuple(values["warnings"]))
    return Job(config, run, *given, extra=values["extra"]), values["worker"]


def write_failure(folder: LiveFolder, error: ManyhandsError, rank: int) -> None:
    """Leave a failure where the supervisor finds it: in the folder, or on stderr if that cannot be written."""
    _leave(folder.failure(rank), error)


def write_death(folder: LiveFolder, death: RankFailed) -> None:
    """Leave what a rank could not say itself where the supervisor finds it."""
    _leave(folder.death(death.rank), death)


def writing_death(job: Path) -> Callable[[RankFailed], None]:
    """Return what leaves the death of one of a job's processes, which is named by the first of its ranks."""
    folder, threads = LiveFolder(RunDir(job.parent.parent)), json.loads(job.read_text())["config"]["threads"]

    def write(death: RankFailed) -> None:
        rank = death.rank * threads
        write_death(folder, RankFailed(rank=rank, host=death.host, step=death.step, cause=death.cause))

    return write


def _leave(path: Path, error: ManyhandsError) -> None:
    text = json.dumps(failure_values(error))
    try:
        write_atomically(path, text)
    except OSError:
        with contextlib.suppress(OSError):  # what Ray's ranks print goes to the same disk
            print(f"{FAILURE_LINE}{text}", file=sys.stderr, flush=True)


def read_failures(folder: LiveFolder) -> list[ManyhandsError]:
    """Return the failures that ranks reported, the first reported first."""
    return _read(folder, "failure-*.json")


def read_deaths(folder: LiveFolder) -> list[RankFailed]:
    """Return what guards have said of ranks that ended without a word, the first first."""
    return [death for death in _read(folder, "death-*.json") if isinstance(death, RankFailed)]


def _read(folder: LiveFolder, pattern: str) -> list[ManyhandsError]:
    files = sorted(folder.path.glob(pattern), key=lambda p: p.stat().st_mtime_ns)
    return [failure_of(json.loads(file.read_text())) for file in files]


def failure_in(line: str) -> ManyhandsError | None:
    """Return the failure that a line of a rank's output reports, if it does."""
    _, mark, text = line.partition(FAILURE_LINE)  # mpiexec may put the rank before it
    with contextlib.suppress(ValueError):
        return failure_of(json.loads(text)) if mark else None
    return None


def failure_values(error: ManyhandsError) -> dict[str, Any]:
    """Describe a failure in plain JSON."""
    values: dict[str, Any] = {"kind": type(error).__name__, "says": str(error)}
    if isinstance(error, RankFailed):
        values.update(rank=error.rank, host=error.host, step=error.step, cause=error.cause)
    return values


def failure_of(values: dict[str, Any]) -> ManyhandsError:
    """Return the failure that is described."""
    if values["kind"] == "RankFailed":
        return RankFailed(**{k: values[k] for k in ("rank", "host", "step", "cause")})
    from manyhands.comm.torch_ import PeerLost

    known: tuple[type[ManyhandsError], ...] = (UserError, Diverged, PeerLost, Stopped)
    kinds = {kind.__name__: kind for kind in known}
    return kinds.get(values["kind"], ManyhandsError)(values["says"])


_STATUS = struct.Struct("<qq64s")


@final
class LiveWatch:
    """Looks after one rank of a process that a supervisor started: the step goes to a file, which stays open.

    The file is not mapped into memory: where its disk is full, or somebody cuts it short, that ends a process.
    """

    def __init__(self, folder: LiveFolder, rank: int) -> None:
        self._folder, self.step = folder, -1
        self._stop = threading.Event()
        with writing(folder.rank(rank)):
            self._file = os.open(folder.rank(rank), os.O_RDWR | os.O_CREAT, 0o644)
            weakref.finalize(self, os.close, self._file)
            os.pwrite(self._file, _STATUS.pack(os.getpid(), -1, socket.gethostname().encode()[:64]), 0)

    def at(self, step: int) -> None:
        """Write the step down: it must outlive this process."""
        self.step = step
        with contextlib.suppress(OSError):
            os.pwrite(self._file, struct.pack("<q", step), 8)

    def stop_asked(self) -> bool:
        """Tell whether the supervisor, or a SIGTERM, wants the run to end."""
        return self._stop.is_set() or self._folder.stop.exists()

    def pulse(self, pulse: Pulse) -> None:
        """Append it to a file that the supervisor follows; a run goes on where it cannot be shown."""
        with contextlib.suppress(OSError), open(self._folder.pulses, "a") as f:
            f.write(pulse.model_dump_json() + "\n")

    def stop_on_signals(self) -> None:
        """End after the step on what batch systems send before the time is up; ignore SIGINT."""
        for number in STOPS:
            signal.signal(number, lambda *_: self._stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def read_pulse(line: str | bytes) -> Pulse | None:
    """Read a line of the pulses; None where a full disk has cut it off."""
    try:
        return Pulse.model_validate_json(line)
    except ValidationError:
        return None


def read_status(folder: LiveFolder, rank: int) -> tuple[int, int, str] | None:
    """Return a rank's process id, last step and host, if it got so far as to say them."""
    path = folder.rank(rank)
    if not path.is_file() or path.stat().st_size < _STATUS.size:
        return None
    pid, step, host = _STATUS.unpack(path.read_bytes()[: _STATUS.size])
    return pid, step, host.rstrip(b"\0").decode(errors="replace")
