"""The watch of a worker that trains several models: one bar for all of its steps."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, final

from manyhands.record import Pulse
from manyhands.training.watch import Watch

T = TypeVar("T")


@final
class ModelsWatch:
    """Passes on what one model's training says as a part of the whole; only the first worker's is shown.

    Workers that train alone do not meet until the end: `alarm` is a file that one leaves when it fails.
    """

    def __init__(self, inner: Watch, *, shown: bool, steps: int, alarm: Path) -> None:
        self._inner, self._shown, self._steps, self._alarm = inner, shown, max(1, steps), alarm
        self._before, self._since = 0, time.perf_counter()
        self.stopped = False

    def at(self, step: int) -> None:
        """Note the step, counted over all models of this worker."""
        self._inner.at(self._before + step)

    def stop_asked(self) -> bool:
        """Tell whether it is all to end; once said, it stays so for the models that follow."""
        self.stopped = self.stopped or self._inner.stop_asked() or self._alarm.exists()
        return self.stopped

    def pulse(self, pulse: Pulse) -> None:
        """Show the step among all steps of this worker."""
        if self._shown:
            done = self._before + pulse.step
            left_s = (time.perf_counter() - self._since) / max(1, done) * (self._steps - done)
            self._inner.pulse(pulse.model_copy(update={"step": done, "steps": self._steps, "eta_s": left_s}))

    def parts(self, count: int) -> "list[StackWatch]":
        """Return a watch for each of so many stacks that are trained side by side."""
        done = [0] * count
        return [StackWatch(self, done, i) for i in range(count)]

    def guarded(self, work: Callable[[int], T]) -> Callable[[int], T]:
        """Return the work of a thread that lets the other threads end when it fails."""

        def run(thread: int) -> T:
            try:
                return work(thread)
            except BaseException:
                self.stopped = True
                raise

        return run

    def passed(self, steps: int) -> None:
        """Go on to the next model."""
        self._before += steps


@final
class StackWatch:
    """Shows the steps of one thread's stacks together with those that the others have made."""

    def __init__(self, models: ModelsWatch, done: list[int], place: int) -> None:
        self._models, self._done, self._place = models, done, place
        self._before = 0

    def at(self, step: int) -> None:
        """Note the step."""
        self._models.at(step)

    def stop_asked(self) -> bool:
        """Tell whether it is all to end."""
        return self._models.stop_asked()

    def pulse(self, pulse: Pulse) -> None:
        """Show what all threads have done."""
        self._done[self._place] = self._before + pulse.step
        self._models.pulse(pulse.model_copy(update={"step": sum(self._done)}))

    def passed(self, steps: int) -> None:
        """Go on to the next stack."""
        self._before += steps
