"""Progress of a worker that trains several models: one bar for all of its steps."""

import threading
import time
from pathlib import Path
from typing import final

from manyhands.record.run import Pulse
from manyhands.training.watch import Watch


@final
class ModelsWatch(Watch):
    """Reports the training of one model, or of stacks in several threads, as a part of all models of this worker.

    Only the first worker's progress is shown. Workers that train alone do not meet until the end: a worker that fails
    leaves the file `alarm`, which ends the others. Once `stopped`, all models that follow are stopped too.
    """

    def __init__(self, inner: Watch, *, shown: bool, steps: int, alarm: Path) -> None:
        self._inner, self._shown, self._steps, self._alarm = inner, shown, max(1, steps), alarm
        self._since, self._lock = time.perf_counter(), threading.Lock()
        self._finished = 0
        self._in_thread: dict[int, int] = {}
        """Steps of the models that each thread is training."""
        self.stopped = False

    def at(self, step: int) -> None:
        self._inner.at(self._finished + step)

    def stop_asked(self) -> bool:
        self.stopped = self.stopped or self._inner.stop_asked() or self._alarm.exists()
        return self.stopped

    def pulse(self, pulse: Pulse) -> None:
        with self._lock:
            self._in_thread[threading.get_ident()] = pulse.step
            done = self._finished + sum(self._in_thread.values())
        if self._shown:
            left_s = (time.perf_counter() - self._since) / max(1, done) * (self._steps - done)
            self._inner.pulse(pulse.model_copy(update={"step": done, "steps": self._steps, "eta_s": left_s}))

    def finish(self, steps: int) -> None:
        """Count the steps of the models that this thread has trained."""
        with self._lock:
            self._finished += steps
            self._in_thread.pop(threading.get_ident(), None)
