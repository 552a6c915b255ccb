"""Time some steps of a run call by call, and sum up the time of each function.

Python reports every call and return to a thread's profile function. Logging one such event costs a good part of a
microsecond, as much as a small function takes. So only some steps of a run are logged, and the cost is subtracted
again: the time of a function is kept together with the number of gaps between events that it was summed from.

Sampling the thread's stack from outside would be the alternative. A sampler needs the interpreter's lock, which a step
releases only where a compiled function begins: it would attribute all time to those, and next to none to the code
between them.
"""

import sys
import time
import timeit
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, NamedTuple, final

Note = tuple[str, CodeType, int, float]
"""An event: its kind (`call`, `return`; `c_call` and so on for compiled functions), the function, the offset of the
instruction in it, and the time."""
TRIES = 100
"""How often a loop is timed, of which the shortest counts."""


@final
class CallLog:
    """A log of every call that this thread makes while the log is open."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._notes: list[Note] = []
        self._before: Any = None
        self.is_open = False

    def open(self) -> None:
        """Begin to log calls."""
        self._notes = []
        keep, clock = self._notes.append, self._clock

        def hook(frame: FrameType, what: str, about: object) -> None:
            # `about` may hold a tensor, which must not live longer than without us.
            keep((what, frame.f_code, frame.f_lasti, clock()))

        self._before, self.is_open = sys.getprofile(), True
        sys.setprofile(hook)

    def close(self) -> list[Note]:
        """Stop logging, and return the events."""
        sys.setprofile(self._before)
        self.is_open = False
        return self._notes


class Toll(NamedTuple):
    """The cost of logging."""

    note_s: float
    """Seconds to log one event."""
    slow_down: float
    """How many times as long the interpreter takes for everything else (Python 3.11 twice, later ones hardly more)."""


@dataclass(slots=True)
class Spent:
    """Seconds, in Python and in compiled functions, and the number of gaps between events that they are the sums of."""

    python_s: float = 0.0
    python_gaps: float = 0
    native_s: float = 0.0
    native_gaps: float = 0

    def plus(self, other: "Spent", times: float = 1) -> "Spent":
        """Return the sum of this and `times` × the other."""
        return Spent(
            self.python_s + times * other.python_s,
            self.python_gaps + times * other.python_gaps,
            self.native_s + times * other.native_s,
            self.native_gaps + times * other.native_gaps,
        )

    def add_gap(self, seconds: float, *, native: bool) -> None:
        """Add the time between two events."""
        if native:
            self.native_s += seconds
            self.native_gaps += 1
        else:
            self.python_s += seconds
            self.python_gaps += 1

    def net(self, toll: Toll) -> float:
        """Return the seconds without the cost of logging."""
        python_s = max(0.0, self.python_s - self.python_gaps * toll.note_s) / toll.slow_down
        return python_s + max(0.0, self.native_s - self.native_gaps * toll.note_s)


@dataclass(slots=True)
class Function:
    """The time of a function: its own, and with all functions that it called."""

    self_time: Spent = field(default_factory=Spent)
    total_time: Spent = field(default_factory=Spent)
    starts: Counter[int] = field(default_factory=Counter)
    """How often it was entered at each instruction: a generator is also entered after each `yield`."""
    lines: dict[int, Spent] = field(default_factory=lambda: defaultdict(Spent))
    """Time of the compiled functions called at each instruction, which is part of `self_time`."""
    line_calls: Counter[int] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """How often it was entered at its beginning."""
        return self.starts[min(self.starts)] if self.starts else 0


@dataclass(slots=True)
class _Frame:
    """A function that is being executed."""

    code: CodeType
    before: Spent
    """Time since the beginning of the log when it was entered."""
    outermost: bool
    native: int | None = None
    """The instruction that called a compiled function which has not returned yet."""


@final
class Tally:
    """The time of each function, summed over several logs."""

    def __init__(self, pauses: Container[CodeType] = ()) -> None:
        self.functions: defaultdict[CodeType, Function] = defaultdict(Function)
        self._pauses = pauses
        """Functions that do not count, with all that they call."""
        self._frames: list[_Frame] = []
        self._depth: Counter[CodeType] = Counter()
        self._spent, self._last_s, self._deep_in_pause = Spent(), 0.0, 0

    def add(self, notes: Iterable[Note], stack: Sequence[CodeType], begun_s: float, ended_s: float) -> Spent:
        """Add a log that began inside the functions of `stack`, the innermost last; return its time.

        Functions that have not returned at the end of the log count up to there.
        """
        self._spent, self._last_s, self._deep_in_pause = Spent(), begun_s, 0
        for code in stack:
            self._push(code)
        for what, code, place, now_s in notes:
            if self._deep_in_pause:
                self._deep_in_pause += (what == "call") - (what == "return")
                self._last_s = now_s
                continue
            self._pass(now_s)
            if what == "call" and code in self._pauses:
                self._deep_in_pause = 1
            elif what == "call":
                self.functions[code].starts[place] += 1
                self._push(code)
            elif what == "return":
                self._return(code)
            elif self._frames and self._frames[-1].code is code:
                self._native(what, place)
        if not self._deep_in_pause:
            self._pass(ended_s)
        while self._frames:
            self._pop()
        return self._spent

    def _pass(self, now_s: float) -> None:
        """Give the time since the last event to the function that was being executed."""
        passed_s, self._last_s = now_s - self._last_s, now_s
        place = self._frames[-1].native if self._frames else None
        self._spent.add_gap(passed_s, native=place is not None)
        if not self._frames:
            return
        function = self.functions[self._frames[-1].code]
        function.self_time.add_gap(passed_s, native=place is not None)
        if place is not None:
            function.lines[place].add_gap(passed_s, native=True)

    def _native(self, what: str, place: int) -> None:
        frame = self._frames[-1]
        frame.native = place if what == "c_call" else None
        if what == "c_call":
            self.functions[frame.code].line_calls[place] += 1

    def _return(self, code: CodeType) -> None:
        # An event may be missing, where something else took the thread's profile function for a while.
        if any(frame.code is code for frame in self._frames):
            while self._pop() is not code:
                pass

    def _push(self, code: CodeType) -> None:
        self._depth[code] += 1
        self._frames.append(_Frame(code, replace(self._spent), self._depth[code] == 1))

    def _pop(self) -> CodeType:
        frame = self._frames.pop()
        self._depth[frame.code] -= 1
        if frame.outermost:
            function = self.functions[frame.code]
            function.total_time = function.total_time.plus(self._spent.plus(frame.before, -1))
        return frame.code


def slow_down() -> float:
    """Measure how many times as long Python takes in a thread that has a profile function."""

    def nothing(frame: FrameType, what: str, about: object) -> None:
        pass

    before, alone_s, logged_s = sys.getprofile(), [], []
    loop = timeit.Timer("for i in range(1000): total += i * i", "total = 0")
    try:
        for _ in range(TRIES):  # in turn, so that both have the machine in the same state
            sys.setprofile(None)
            alone_s.append(loop.timeit(1))
            sys.setprofile(nothing)
            logged_s.append(loop.timeit(1))
    finally:
        sys.setprofile(before)
    return max(1.0, min(logged_s) / min(alone_s))
