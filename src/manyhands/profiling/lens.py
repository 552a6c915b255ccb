"""Time some steps of a run call by call: a watch around the training loop, and the function that each rank runs."""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import reduce
from types import CodeType, FrameType
from typing import Any, NamedTuple, final

from manyhands.comm import Comm
from manyhands.comm.texts import gather_texts
from manyhands.machine.load import interruptions
from manyhands.measurement.calls import CallLog, Note, Spent, Tally, Toll, slow_down
from manyhands.profiling.functions import function_row, line_rows
from manyhands.record.run import Pulse
from manyhands.training.job import Job
from manyhands.training.journal import Journal
from manyhands.training.loop import train_rank
from manyhands.training.watch import Watch

PAUSES = frozenset({Journal.evaluate.__code__, Journal.checkpoint.__code__})
"""Functions called between two steps whose time a run's record does not count as the loop's."""
KEPT_NOTES = 200_000
"""Events to keep until the run has ended; more are summed up during the run, which slows it down."""
ENOUGH = 1 / 3
"""Share of undisturbed steps from which on the disturbed ones are left out."""
MOST_LINES = 40
"""Source lines to keep of each rank; most take next to no time."""


class Pace(NamedTuple):
    """Which steps are timed call by call: one in `stride`, from the step `first` on."""

    first: int
    stride: int

    def times(self, step: int) -> bool:
        """Return whether the step is timed call by call."""
        return step >= self.first and (step - self.first) % self.stride == 0


_TimedStep = tuple[list[Note], list[CodeType]]
"""The log of a step that was timed call by call, and the functions in which it began."""


@final
class Lens:
    """Time the steps between one call of `at` and the next: some call by call, the others as a whole.

    A step timed call by call in which another program took the core is left out, unless too few others are left: the
    interruption is longer than most steps, and would be attributed to whichever small function it fell on.
    """

    def __init__(
        self,
        inner: Watch,
        pace: Pace,
        *,
        within: CodeType,
        pauses: frozenset[CodeType] = PAUSES,
        clock: Callable[[], float] = time.perf_counter,
        interruptions: Callable[[], int] = interruptions,
    ) -> None:
        self._inner, self._pace, self._within = inner, pace, within
        self._clock, self._interruptions = clock, interruptions
        self._log, self._stack, self._before = CallLog(clock), [within], 0
        self._since_s: float | None = None
        self._slow_down = slow_down()
        self._calm: list[_TimedStep] = []
        self._disturbed: list[_TimedStep] = []
        self._spent: list[Spent] = []
        self._short_gaps: list[tuple[float, float]] = []
        self.steps = 0
        self.plain_s: list[float] = []
        self.tally = Tally(pauses)

    def at(self, step: int) -> None:
        """End the previous step, and begin this one."""
        now_s = self._clock()
        if self._log.is_open:
            self._end_timed()
        elif self._since_s is not None:
            self.plain_s.append(now_s - self._since_s)
        self._inner.at(step)
        self.steps += 1
        if self._pace.times(step):
            self._stack, self._before = _stack(self._within), self._interruptions()
            self._log.open()
        self._since_s = self._clock() if step >= self._pace.first else None

    def stop_asked(self) -> bool:
        """Return whether the inner watch was asked to stop."""
        return self._inner.stop_asked()

    def pulse(self, pulse: Pulse) -> None:
        """Hand a pulse to the inner watch."""
        self._inner.pulse(pulse)

    def close(self) -> None:
        """Stop timing; the last step is left out, since nothing marks its end."""
        if self._log.is_open:
            self._log.close()
        self._since_s = None

    def finish(self) -> None:
        """Sum up the steps that were not summed up during the run."""
        timed = len(self._spent) + len(self._calm) + len(self._disturbed)
        self._sum_up(self._calm)
        if len(self._spent) < ENOUGH * timed:
            self._sum_up(self._disturbed)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain JSON; seconds and calls are sums over the timed steps that are not left out."""
        functions, toll = self.tally.functions.items(), self.toll()
        lines = [row for code, function in functions for row in line_rows(code, function, toll)]
        return {
            "steps": self.steps,
            "timed_steps": len(self._spent),
            "disturbed_steps": len(self._disturbed),
            "plain_step_ms": 1e3 * self.plain_step_s,
            "extra_ms": 1e3 * self.extra_s,
            "functions": [function_row(code, function, toll) for code, function in functions],
            "lines": sorted(lines, key=lambda row: -row["self_s"])[:MOST_LINES],
        }

    @property
    def plain_step_s(self) -> float:
        """Mean time of the fastest tenth of the steps timed as a whole."""
        return statistics.mean(sorted(self.plain_s)[: 1 + len(self.plain_s) // 10]) if self.plain_s else 0.0

    @property
    def extra_s(self) -> float:
        """By how much a step timed call by call is longer, in the fastest tenth of both."""
        if not self._spent or not self.plain_s:
            return 0.0
        calm = self._calmest()
        return max(0.0, calm.python_s + calm.native_s - self.plain_step_s)

    def toll(self) -> Toll:
        """Return the cost of logging, from how much longer it makes a step."""
        if not self._spent:
            return Toll(0.0, 1.0)
        calm, slow = self._calmest(), self._slow_down
        slower_s = calm.python_s * (1 - 1 / slow)
        note_s = (self.extra_s - slower_s) / (calm.native_gaps + calm.python_gaps / slow)
        # Steps differ for other reasons too. But an event costs no less than the shortest gaps between events, and
        # cannot cost far more than the median gap.
        least_s, half_s = (statistics.median(gaps) for gaps in zip(*self._short_gaps, strict=True))
        return Toll(min(max(note_s, least_s), 2 * half_s), slow)

    def _calmest(self) -> Spent:
        """Return the mean of the fastest tenth of the steps timed call by call."""
        calm = sorted(self._spent, key=lambda spent: spent.python_s + spent.native_s)[: 1 + len(self._spent) // 10]
        return Spent().plus(reduce(Spent.plus, calm), 1 / len(calm))

    def _end_timed(self) -> None:
        notes = self._log.close()
        steps = self._calm if self._interruptions() == self._before else self._disturbed
        steps.append((notes, self._stack))
        if sum(len(notes) for notes, _ in steps) > KEPT_NOTES:
            self._sum_up(steps) if steps is self._calm else steps.pop()

    def _sum_up(self, steps: list[_TimedStep]) -> None:
        for notes, stack in steps:
            # The log begins with the end of our own `at`, and ends with the beginning of the next.
            first = next(i for i, (what, code, _, _) in enumerate(notes) if code is _AT and what == "return")
            last = max(i for i, (what, code, _, _) in enumerate(notes) if code is _AT and what == "call")
            spent = self.tally.add(notes[first + 1 : last], stack, notes[first][3], notes[last][3])
            self._spent.append(spent)
            self._short_gaps.append(_short_gaps(notes))
        steps.clear()


_AT = Lens.at.__code__


def _short_gaps(notes: list[Note]) -> tuple[float, float]:
    """Return the 5th percentile and the median of the gaps between events."""
    gaps = sorted(b[3] - a[3] for a, b in itertools.pairwise(notes))
    return gaps[len(gaps) // 20], gaps[len(gaps) // 2]


def _stack(within: CodeType) -> list[CodeType]:
    """Return the functions that called `at`, from `within` on, the innermost last."""
    codes: list[CodeType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and within not in codes:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes[::-1]


def profile_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Train as one rank of `comm`; return the record and the profile of every rank, the same on all."""
    lens = Lens(watch, Pace(**job.extra), within=train_rank.__code__)
    try:
        record = train_rank(comm, job, lens)
    finally:
        lens.close()
    lens.finish()
    text = json.dumps({"record": record, "profile": lens.to_json()})
    return {"ranks": [json.loads(text) for text in gather_texts(comm, text)]}
