"""The live folder of a run: ranks report there, the supervisor listens. Plain files, so it works across hosts."""

import json
import mmap
import os
import shutil
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, final

from manyhands.comm.torch_ import PeerLost
from manyhands.config import RunConfig
from manyhands.errors import Diverged, ManyhandsError, RankFailed, UserError
from manyhands.record import Pulse, RunDir, write_atomically
from manyhands.training import Job

TRIES, PAUSE_S = 20, 0.05
"""How often the folder is removed again, and after how long, while somebody still writes there."""


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

    def open(self) -> None:
        """Make it, empty."""
        self.close()
        self.path.mkdir(parents=True)

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
                "extra": job.extra,
            }
        )
        write_atomically(self.job, text)


def read_job(path: Path) -> tuple[Job, str]:
    """Read what this rank is to do, and the name of the worker function."""
    values = json.loads(path.read_text())
    run = RunDir(path.parent.parent)
    config = RunConfig.model_validate(values["config"])
    return Job(config, run, values["resume"], values["keep_weights"], extra=values["extra"]), values["worker"]


def write_failure(folder: LiveFolder, error: ManyhandsError, rank: int) -> None:
    """Leave a failure where the supervisor finds it."""
    values: dict[str, Any] = {"kind": type(error).__name__, "says": str(error)}
    if isinstance(error, RankFailed):
        values.update(rank=error.rank, host=error.host, step=error.step, cause=error.cause)
    write_atomically(folder.failure(rank), json.dumps(values))


def read_failures(folder: LiveFolder) -> list[ManyhandsError]:
    """Return the failures that ranks reported, the first reported first."""
    files = sorted(folder.path.glob("failure-*.json"), key=lambda p: p.stat().st_mtime_ns)
    return [_failure(json.loads(file.read_text())) for file in files]


def _failure(values: dict[str, Any]) -> ManyhandsError:
    if values["kind"] == "RankFailed":
        return RankFailed(**{k: values[k] for k in ("rank", "host", "step", "cause")})
    kinds: dict[str, type[ManyhandsError]] = {"UserError": UserError, "Diverged": Diverged, "PeerLost": PeerLost}
    return kinds.get(values["kind"], ManyhandsError)(values["says"])


_STATUS = struct.Struct("<qq64s")


@final
class LiveWatch:
    """Looks after one rank of a process that a supervisor started: the step goes to a memory-mapped file."""

    def __init__(self, folder: LiveFolder, rank: int) -> None:
        self._folder, self.step = folder, -1
        self._stop = threading.Event()
        with open(folder.rank(rank), "w+b") as f:
            f.write(_STATUS.pack(os.getpid(), -1, socket.gethostname().encode()[:64]))
            f.flush()
            self._map = mmap.mmap(f.fileno(), _STATUS.size)

    def at(self, step: int) -> None:
        """Write the step down: it must outlive this process."""
        self.step = step
        struct.pack_into("<q", self._map, 8, step)

    def stop_asked(self) -> bool:
        """Tell whether the supervisor, or a SIGTERM, wants the run to end."""
        return self._stop.is_set() or self._folder.stop.exists()

    def pulse(self, pulse: Pulse) -> None:
        """Append it to a file that the supervisor follows."""
        with open(self._folder.pulses, "a") as f:
            f.write(pulse.model_dump_json() + "\n")

    def stop_on_sigterm(self) -> None:
        """End after the step on SIGTERM, which batch systems send before the time is up; ignore SIGINT."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())


def read_status(folder: LiveFolder, rank: int) -> tuple[int, int, str] | None:
    """Return a rank's process id, last step and host, if it got so far as to say them."""
    path = folder.rank(rank)
    if not path.is_file() or path.stat().st_size < _STATUS.size:
        return None
    pid, step, host = _STATUS.unpack(path.read_bytes()[: _STATUS.size])
    return pid, step, host.rstrip(b"\0").decode(errors="replace")
