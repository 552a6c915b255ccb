"""Progress of a worker that trains several models: one bar for all of its steps."""

import time
from pathlib import Path
from typing import final

from manyhands.record import Pulse
from manyhands.training.watch import Watch


@final
class ModelsWatch(Watch):
    """Reports the training of one model as a part of all models of this worker; only the first worker's is shown.

    Workers that train alone do not meet until the end: a worker that fails leaves the file `alarm`, which ends the
    others. Once `stopped`, all models that follow are stopped too.
    """

    def __init__(self, inner: Watch, *, shown: bool, steps: int, alarm: Path) -> None:
        self._inner, self._shown, self._steps, self._alarm = inner, shown, max(1, steps), alarm
        self._before, self._since = 0, time.perf_counter()
        self.stopped = False

    def at(self, step: int) -> None:
        self._inner.at(self._before + step)

    def stop_asked(self) -> bool:
        self.stopped = self.stopped or self._inner.stop_asked() or self._alarm.exists()
        return self.stopped

    def pulse(self, pulse: Pulse) -> None:
        if self._shown:
            done = self._before + pulse.step
            left_s = (time.perf_counter() - self._since) / max(1, done) * (self._steps - done)
            self._inner.pulse(pulse.model_copy(update={"step": done, "steps": self._steps, "eta_s": left_s}))

    def for_threads(self, count: int) -> "list[StackWatch]":
        """Return a watch for each of `count` threads that train stacks side by side."""
        done = [0] * count
        return [StackWatch(self, done, thread) for thread in range(count)]

    def finish_model(self, steps: int) -> None:
        """Count the steps of a model that is trained."""
        self._before += steps


@final
class StackWatch(Watch):
    """Reports the steps of one thread's stacks together with those of the other threads, which share `done`."""

    def __init__(self, models: ModelsWatch, done: list[int], thread: int) -> None:
        self._models, self._done, self._thread = models, done, thread
        self._before = 0

    def at(self, step: int) -> None:
        self._models.at(step)

    def stop_asked(self) -> bool:
        return self._models.stop_asked()

    def pulse(self, pulse: Pulse) -> None:
        self._done[self._thread] = self._before + pulse.step
        self._models.pulse(pulse.model_copy(update={"step": sum(self._done)}))

    def finish_stack(self, steps: int) -> None:
        """Count the steps of a stack that is trained, over all of its models."""
        self._before += steps
