"""Look closely at some steps of a run: a watch that times them call by call, and the worker that carries it."""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple, final

from manyhands.comm import Comm
from manyhands.comm.texts import gather_texts
from manyhands.machine.load import interruptions
from manyhands.measurement.calls import CallLog, Note, Spent, Tally, Toll, slow_down, sum_of
from manyhands.profiling.functions import plain
from manyhands.record import Pulse
from manyhands.training.job import Job
from manyhands.training.journal import Journal
from manyhands.training.loop import train_rank
from manyhands.training.watch import Watch

PAUSES = frozenset({Journal.evaluate.__code__, Journal.checkpoint.__code__})
"""What happens between two steps and is no part of the loop's time in a run's record."""
KEPT_NOTES = 200_000
"""Notes to keep until the run has ended; beyond that they are summed up on the way, which takes time from the run."""
ENOUGH = 1 / 3
"""The share of undisturbed steps that is enough to leave the others out."""


class Pace(NamedTuple):
    """Which steps are timed call by call: one in `stride`, from the step `first` on."""

    first: int
    stride: int

    def times(self, step: int) -> bool:
        """Tell whether this step is timed so."""
        return step >= self.first and (step - self.first) % self.stride == 0


class _TimedStep(NamedTuple):
    """A step that was timed call by call."""

    notes: list[Note]
    stack: list[CodeType]


@final
class Lens:
    """Times the steps between one call of `at` and the next: some call by call, the others as a whole.

    A timed step in which another program took the core is left out, unless too few others are left: one such pause is
    longer than most steps, and would be found in whichever small function it fell on.
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
        """End the step before, and begin this one."""
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
        """Pass on."""
        return self._inner.stop_asked()

    def pulse(self, pulse: Pulse) -> None:
        """Pass on."""
        self._inner.pulse(pulse)

    def close(self) -> None:
        """Stop looking; the last step has no end that would be told, and is left out."""
        if self._log.is_open:
            self._log.close()
        self._since_s = None

    def finish(self) -> None:
        """Sum up what is left."""
        timed = len(self._spent) + len(self._calm) + len(self._disturbed)
        self._sum_up(self._calm)
        if len(self._spent) < ENOUGH * timed:
            self._sum_up(self._disturbed)

    @property
    def timed_steps(self) -> int:
        """How many steps the tally is of."""
        return len(self._spent)

    @property
    def disturbed_steps(self) -> int:
        """How many timed steps are not in it."""
        return len(self._disturbed)

    @property
    def plain_step_s(self) -> float:
        """How long a step is that is not timed, in the least disturbed tenth of these."""
        return statistics.mean(_least(self.plain_s)) if self.plain_s else 0.0

    @property
    def extra_s(self) -> float:
        """By how much a timed step is longer, likewise."""
        if not self._spent or not self.plain_s:
            return 0.0
        calm = self._calmest()
        return max(0.0, calm.python_s + calm.native_s - self.plain_step_s)

    def toll(self) -> Toll:
        """Tell what the notes cost, from how much longer they make a step."""
        if not self._spent:
            return Toll(0.0, 1.0)
        calm, slow = self._calmest(), self._slow_down
        slower_s = calm.python_s * (1 - 1 / slow)
        note_s = (self.extra_s - slower_s) / (calm.native_gaps + calm.python_gaps / slow)
        # Steps differ for other reasons too. But a note costs no less than the shortest gaps between notes last, and
        # cannot cost far more than half of them do.
        least_s, half_s = (statistics.median(gaps) for gaps in zip(*self._short_gaps, strict=True))
        return Toll(min(max(note_s, least_s), 2 * half_s), slow)

    def _calmest(self) -> Spent:
        """Return the mean of the least disturbed timed steps."""
        calm = sorted(self._spent, key=lambda spent: spent.python_s + spent.native_s)[: 1 + len(self._spent) // 10]
        return sum_of(calm).share(1 / len(calm))

    def _end_timed(self) -> None:
        piece = _TimedStep(self._log.close(), self._stack)
        pieces = self._calm if self._interruptions() == self._before else self._disturbed
        pieces.append(piece)
        if sum(len(kept.notes) for kept in pieces) > KEPT_NOTES:
            self._sum_up(pieces) if pieces is self._calm else pieces.pop()

    def _sum_up(self, pieces: list[_TimedStep]) -> None:
        for notes, stack in pieces:
            # The notes begin with the end of our own `at`, and end with the beginning of the next.
            first = next(i for i, (what, code, _, _) in enumerate(notes) if code is _AT and what == "return")
            last = max(i for i, (what, code, _, _) in enumerate(notes) if code is _AT and what == "call")
            spent = self.tally.add(notes[first + 1 : last], stack, notes[first][3], notes[last][3])
            self._spent.append(spent)
            self._short_gaps.append(_short_gaps(notes))
        pieces.clear()


_AT = Lens.at.__code__


def _least(seconds: Iterable[float]) -> list[float]:
    """Return the least tenth."""
    ordered = sorted(seconds)
    return ordered[: 1 + len(ordered) // 10]


def _short_gaps(notes: list[Note]) -> tuple[float, float]:
    """Return what a twentieth of the gaps between notes are shorter than, and what half are."""
    gaps = sorted(b[3] - a[3] for a, b in itertools.pairwise(notes))
    return gaps[len(gaps) // 20], gaps[len(gaps) // 2]


def _stack(within: CodeType) -> list[CodeType]:
    """Return the functions that called `at`, from `within` on, the innermost last."""
    found: list[CodeType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and within not in found:
        found.append(frame.f_code)
        frame = frame.f_back
    return found[::-1]


def profile_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Train as one rank of `comm`; return the record and the profile of every rank, the same on all."""
    lens = Lens(watch, Pace(**job.extra), within=train_rank.__code__)
    try:
        record = train_rank(comm, job, lens)
    finally:
        lens.close()
    lens.finish()
    own = json.dumps({"record": record, "profile": plain(lens)})
    return {"ranks": [json.loads(text) for text in gather_texts(comm, own)]}
