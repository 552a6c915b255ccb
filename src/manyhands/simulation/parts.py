"""A task's network as a simulation needs it: its outline, and measured times of parts of a step.

Measured parts are stored in a file beside the calibration, so that the same request gives the same prediction.
"""

import contextlib
import statistics
import time
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import final

from pydantic import ValidationError

from manyhands import tasks
from manyhands.codec import Codec
from manyhands.data import Dataset
from manyhands.errors import check
from manyhands.launch.blas_threads.count import process_settings
from manyhands.record.calibration import Calibration, calibrate_command
from manyhands.record.files import write_atomically
from manyhands.record.simulation import CodecTimes, Parts
from manyhands.replica import Batch, Replica
from manyhands.replica.meta import GradientReady, Outline, outline_of
from manyhands.request import resolve
from manyhands.tasks.setup import device_of, load_data, make_replica
from manyhands.virtual.codec import measure_codec

REPEATS = 9
Mark = tuple[float, int, int]
"""Time at which the gradients from `start` to `stop` were final, `start` and `stop`."""


@final
class TaskNetwork:
    """A task's network, and the measured parts of its step."""

    def __init__(self, name: str, calibrated: str, path: Path | None = None) -> None:
        """Build the network; `path` is the file of parts measured with the calibration of date `calibrated`."""
        self.task = tasks.load(name)
        self.config = resolve(name, {"engine": "serial", "blas_threads": 1}, self.task)
        self._data: Dataset = load_data(self.task, self.config)
        self.samples = len(self._data.train)
        self._replica: Replica = make_replica(self.task, self.config, self._data, device_of(self.config, 0))
        self._marks: list[Mark] = []
        """Marks of the last pass, once `_listens`."""
        self._listens = False
        self._path = path
        self._parts = _read(path, calibrated)

    def check_calibrated(self, calibration: Calibration) -> None:
        """Raise a `UserError` if the task has changed since it was calibrated."""
        costs, name = calibration.tasks[self.config.task], self.config.task
        then = costs.parameters, costs.weight_bytes, costs.samples
        now = self._replica.update.num_weights, self._replica.params.nbytes, self.samples
        command = calibrate_command(name, calibration.device)
        check(then == now, f"task '{name}' has changed since it was calibrated; run '{command}' again")

    def outline(self, rows: int) -> Outline:
        """Return the network's outline for a worker with `rows` rows."""
        return outline_of(self._replica, partial(self._ready, max(1, min(rows, self.samples))))

    def times_of(self, codec: Codec | None) -> CodecTimes | None:
        """Return the times of `codec`, if there is one."""
        if codec is None:
            return None
        key = f"{self.config.task} {codec!r}"
        if key not in self._parts.codecs:
            self._parts.codecs[key] = measure_codec(codec, self.outline(1))
            self._store()
        return self._parts.codecs[key]

    def _ready(self, rows: int) -> tuple[GradientReady, ...]:
        """Return when parts of the gradients are final, which only a worker's last piece of a batch decides."""
        key = f"{self.config.task} {rows}"
        if key not in self._parts.ready:
            last = (rows - 1) % self.config.micro_batch + 1 if self.config.micro_batch else rows
            batch = Batch(*self._data.train.batch(slice(0, last), self._replica.params.dtype), told_rows=last)
            with process_settings(self.config, 1, 1):
                marks = self._median_marks(batch)
            self._parts.ready[key] = [(1 - (1 - share) * last / rows, start, stop) for share, start, stop in marks]
            self._store()
        return tuple(GradientReady(*ready) for ready in self._parts.ready[key])

    def _median_marks(self, batch: Batch) -> list[Mark]:
        """Return the marks as shares of a pass, in the median over some passes and in increasing order."""
        if not self._listens:
            self._listens = self._replica.announces = True
            self._replica.on_grad_ready(lambda start, stop: self._marks.append((time.perf_counter(), start, stop)))
        passes = [self._marked_pass(batch) for _ in range(REPEATS + 1)][1:]
        shares = accumulate((statistics.median(mark[0] for mark in marks) for marks in zip(*passes, strict=True)), max)
        return [(share, start, stop) for share, (_, start, stop) in zip(shares, passes[0], strict=True)]

    def _marked_pass(self, batch: Batch) -> list[Mark]:
        self._marks.clear()
        begun_s = time.perf_counter()
        self._replica.forward_backward(batch, 1.0)
        took_s = time.perf_counter() - begun_s
        return [((at_s - begun_s) / took_s, start, stop) for at_s, start, stop in self._marks]

    def _store(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):  # then it is measured again next time
                write_atomically(self._path, self._parts.model_dump_json() + "\n")


def _read(path: Path | None, calibrated: str) -> Parts:
    """Return the stored parts if they belong to the calibration of date `calibrated`, else none."""
    with contextlib.suppress(OSError, ValidationError):
        parts = Parts.model_validate_json(path.read_bytes()) if path else Parts(made=calibrated)
        if parts.made == calibrated:
            return parts
    return Parts(made=calibrated)
