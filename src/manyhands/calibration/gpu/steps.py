"""Time the steps of one worker on a GPU, in short runs of the training loop itself.

A GPU's work is queued: the host's clock shows when it was handed over, not when it was done. A run waits for the GPU
when it flushes its meter, so that the mean over the steps between two flushes is a real time. What the loop costs the
host (batches, losses, the end of an epoch) takes as long as the GPU's work where the network is small, and is included
because the loop is a run's own.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch

from manyhands import launch
from manyhands.comm import Comm
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import RowTimes
from manyhands.record.run import Others, RunDir, RunRecord, read_steps
from manyhands.replica import Replica
from manyhands.sync import Sync
from manyhands.tasks import Task
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.meter import WARM_UP

SAMPLES = 8
"""Times that a run gives: means over equal parts of its steps."""
STEPS = (4, 2000)
"""The fewest and the most steps of a run after its warm-up."""
FIRST = 2
"""Steps after the warm-up of the first run with a number of rows, which tells how many the others can have."""
TESTED = 64
"""Test samples that are kept, since a run ends with an evaluation."""
RATE = 1e-4
"""Learning rate as a share of the task's, so that no batch diverges."""
REPEATS, BLOCK = 10, 20
"""Blocks of passes over the gradients and of updates, and the passes of a block."""
MOST_SERIAL = 0.5
"""The most of a step that the update counts for, where the host hands over both more slowly than the GPU works."""


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@final
@dataclass
class GpuTask:
    """A task on a device, and the runs that measure its steps."""

    task: Task
    config: RunConfig
    data: Dataset
    """On the device."""
    device: torch.device
    others: list[Others | None] = field(default_factory=list)
    """Use of the host's cores by other programs during each run."""

    def time_run(self, rows: int, steps: int, *, waits: bool) -> list[float]:
        """Train for `steps` steps after the warm-up; return the milliseconds of a step in each part of the run.

        With `waits` the host waits for the device in each step, as it does before an exchange.
        """
        config = self.config.model_copy(update={"batch_size": rows, "steps": WARM_UP + steps})

        def wait(comm: Comm, replica: Replica, sync: Sync, step: int) -> None:
            synchronize(self.device)

        with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
            run = RunDir(Path(folder))
            data = self._whole_batches(rows)
            after = wait if waits else None
            job = Job(config, run, task=self.task, data=data, same_data=True, after_step=after)
            record = RunRecord.model_validate(launch.make("serial").launch(train_rank, job, lambda pulse: None)[0])
            lines = read_steps(run)
        if record.status == "interrupted":
            raise KeyboardInterrupt
        self.others.append(record.others)
        ms = [line["ms"] for line in lines][WARM_UP:]
        return [round(float(part.mean()), 5) for part in np.array_split(ms, min(SAMPLES, len(ms)))]

    def _whole_batches(self, rows: int) -> Dataset:
        """Return the data without the rest of an epoch that has fewer rows, which would make the mean step shorter."""
        train = self.data.train
        return replace(self.data, train=train.take(len(train) // rows * rows), test=self.data.test.take(TESTED))


@final
@dataclass
class GpuPoint:
    """The steps with one number of rows."""

    rows: int
    step_s: float = 0.0
    """About the duration of a step."""
    ms: list[list[float]] = field(default_factory=list)
    """Times of a step in each run."""
    waiting_ms: list[list[float]] = field(default_factory=list)
    """The same where the host waits for the device in each step."""

    def try_run(self, task: GpuTask) -> None:
        """Make buffers and choose algorithms in a run that does not count; learn about how long a step takes."""
        task.time_run(self.rows, FIRST, waits=False)
        self.step_s = 1e-3 * float(np.mean(task.time_run(self.rows, FIRST, waits=False)))

    def steps(self, seconds: float) -> int:
        """Return the steps that take about `seconds`."""
        return int(np.clip(seconds / max(self.step_s, 1e-9), *STEPS))

    def row_times(self, runs: Sequence[Sequence[float]], serial_ms: float) -> RowTimes:
        """Return the times of all runs; the update counts for `serial_ms` of each step."""
        whole = [ms for run in runs for ms in run]
        serial = [min(serial_ms, MOST_SERIAL * ms) for ms in whole]
        compute = [ms - rest for ms, rest in zip(whole, serial, strict=True)]
        return RowTimes(rows=self.rows, compute_ms=compute, serial_ms=serial, block=len(runs[0]))


class Passes(NamedTuple):
    """Milliseconds of operations on all weights, repeated."""

    touch_ms: list[float]
    """One pass over the gradients, as in scaling or adding them."""
    update_ms: list[float]
    """The optimiser's step."""

    @property
    def serial_ms(self) -> float:
        """An undisturbed optimiser's step."""
        return undisturbed(self.update_ms)


def time_passes(replica: Replica, device: torch.device) -> Passes:
    """Time passes over the gradients and updates, in blocks that end when the device is done."""
    replica.grads.zero_()
    replica.update.scale = 0.0
    return Passes(
        _blocks(lambda: replica.grads.mul_(1.0), device),
        _blocks(replica.apply, device),
    )


def _blocks(operation: Callable[[], object], device: torch.device) -> list[float]:
    times = []
    for _ in range(REPEATS + 1):
        synchronize(device)
        begun_s = time.perf_counter()
        for _ in range(BLOCK):
            operation()
        synchronize(device)
        times.append(1e3 * (time.perf_counter() - begun_s) / BLOCK)
    return times[1:]
