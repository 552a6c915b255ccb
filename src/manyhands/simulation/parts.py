"""What a simulation must know of a task besides its calibration: its network's outline, and what parts of a step take.

What is measured for that is kept in a file beside the calibration, so that the same request gives the same answer.
"""

import contextlib
import statistics
import time
from functools import partial
from pathlib import Path
from typing import final

from pydantic import ValidationError

from manyhands import tasks
from manyhands.codec import Codec
from manyhands.data import Dataset
from manyhands.errors import check
from manyhands.launch.blas_threads.count import process_settings
from manyhands.record import write_atomically
from manyhands.record.calibration import Calibration
from manyhands.record.simulation import CodecTimes, Parts
from manyhands.replica import Batch, Replica
from manyhands.replica.meta import GradientReady, Outline, outline_of
from manyhands.request import resolve
from manyhands.tasks.setup import device_of, load_data, make_replica
from manyhands.virtual.codec import measure_codec

REPEATS = 9
Share = tuple[float, int, int]
"""When, from where, to where."""


@final
class TaskNetwork:
    """A task's network, and what was measured of it."""

    def __init__(self, name: str, made: str, kept: Path | None = None) -> None:
        """Build the network; `made` tells the calibration to which measured parts belong, `kept` their file."""
        self.task = tasks.load(name)
        self.config = resolve(name, {"engine": "serial", "blas_threads": 1}, self.task)
        self._data: Dataset = load_data(self.task, self.config)
        self._replica: Replica = make_replica(self.task, self.config, self._data, device_of(self.config, 0))
        self._marks: list[Share] = []
        """When which part of the gradients was announced in the last pass; filled once somebody listens."""
        self._listens = False
        self._kept = kept
        self._parts = _read(kept, made)

    def check_calibrated(self, known: Calibration) -> None:
        """Refuse a calibration of what an own task was before it was changed."""
        costs, name = known.tasks[self.config.task], self.config.task
        then = costs.parameters, costs.weight_bytes, costs.samples
        now = self._replica.update.num_weights, self._replica.params.nbytes, self.samples
        check(then == now, f"task '{name}' has changed since it was calibrated; run 'manyhands calibrate {name}' again")

    @property
    def samples(self) -> int:
        """Training samples."""
        return len(self._data.train)

    def outline(self, rows: int) -> Outline:
        """Return the network's outline, for a worker with so many rows."""
        return outline_of(self._replica, partial(self._ready, max(1, min(rows, self.samples))))

    def times_of(self, codec: Codec | None) -> CodecTimes | None:
        """Return what `codec` takes, if there is one."""
        if codec is None:
            return None
        key = f"{self.config.task} {codec!r}"
        if key not in self._parts.codecs:
            self._parts.codecs[key] = measure_codec(codec, self.outline(1))
            self._keep()
        return self._parts.codecs[key]

    def _ready(self, rows: int) -> tuple[GradientReady, ...]:
        """Return when parts of the gradients are final; only a worker's last piece of a batch tells."""
        key = f"{self.config.task} {rows}"
        if key not in self._parts.ready:
            last = (rows - 1) % self.config.micro_batch + 1 if self.config.micro_batch else rows
            with process_settings(self.config, 1, 1):
                shares = self._shares(self._batch(last))
            self._parts.ready[key] = [(1 - (1 - share) * last / rows, start, stop) for share, start, stop in shares]
            self._keep()
        return tuple(GradientReady(*each) for each in self._parts.ready[key])

    def _shares(self, batch: Batch) -> list[Share]:
        """Return when each part was announced as a share of a pass, in the median over some."""
        if not self._listens:
            self._listens = self._replica.announces = True
            self._replica.on_grad_ready(lambda start, stop: self._marks.append((time.perf_counter(), start, stop)))
        passes = [self._marked_pass(batch) for _ in range(REPEATS + 1)][1:]
        parts = [(start, stop) for _, start, stop in passes[0]]
        shares = [statistics.median(found[i][0] for found in passes) for i in range(len(parts))]
        in_order = [max(shares[: i + 1]) for i in range(len(shares))]
        return [(share, start, stop) for share, (start, stop) in zip(in_order, parts, strict=True)]

    def _marked_pass(self, batch: Batch) -> list[Share]:
        self._marks.clear()
        begun_s = time.perf_counter()
        self._replica.forward_backward(batch, 1.0)
        took_s = time.perf_counter() - begun_s
        return [((at_s - begun_s) / took_s, start, stop) for at_s, start, stop in self._marks]

    def _batch(self, rows: int) -> Batch:
        return Batch(*self._data.train.batch(slice(0, rows), self._replica.params.dtype))

    def _keep(self) -> None:
        if self._kept is not None:
            with contextlib.suppress(OSError):  # next time it is measured again, no more
                write_atomically(self._kept, self._parts.model_dump_json() + "\n")


def parts_path(calibration: Path) -> Path:
    """Return where measured parts are kept, beside a calibration."""
    return calibration.with_name(f"{calibration.stem}.parts.json")


def _read(path: Path | None, made: str) -> Parts:
    """Return what is kept of this calibration, if anything can be read."""
    with contextlib.suppress(OSError, ValidationError):
        kept = Parts.model_validate_json(path.read_bytes()) if path else Parts(made=made)
        if kept.made == made:
            return kept
    return Parts(made=made)
