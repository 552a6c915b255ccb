"""Time a piece of the program call by call, and sum up what each function took.

Python tells a thread's profile function of every call and return. Each such note costs a good part of a microsecond,
which is as much as the small functions that it tells of. So only some steps of a run are noted, and this toll is taken
off again: a function's time is kept together with the number of gaps between notes that it was summed from.

Looking at a thread's stack from outside now and then would be the other way. It needs the interpreter's lock, which a
step gives away only where a compiled function begins: all time is then found in those, and next to none between them.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, NamedTuple, final

Note = tuple[str, CodeType, int, float]
"""What happened (`call`, `return`; `c_call` and so on for compiled functions), in which function, where, and when."""


TRIES = 100
"""How often a loop is timed, of which the shortest counts."""


@final
class CallLog:
    """Notes every call that this thread makes, while it is open."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._notes: list[Note] = []
        self._before: Any = None
        self.is_open = False

    def open(self) -> None:
        """Begin to log calls."""
        self._notes = []
        self._before, self.is_open = sys.getprofile(), True
        sys.setprofile(self._hook())

    def close(self) -> list[Note]:
        """End, and return what was noted."""
        sys.setprofile(self._before)
        self.is_open = False
        return self._notes

    def _hook(self) -> Callable[[FrameType, str, object], None]:
        keep, clock = self._notes.append, self._clock

        def hook(frame: FrameType, what: str, about: object) -> None:
            # `about` may hold a tensor, which must not live longer than without us.
            keep((what, frame.f_code, frame.f_lasti, clock()))

        return hook


class Toll(NamedTuple):
    """What being noted costs."""

    note_s: float
    """Seconds of a note."""
    slow_down: float
    """How many times as long the interpreter takes for everything else (Python 3.11 twice, later ones hardly more)."""


@dataclass(slots=True)
class Spent:
    """Seconds, in Python and in compiled functions, and the number of gaps between notes that they are the sums of."""

    python_s: float = 0.0
    python_gaps: float = 0
    native_s: float = 0.0
    native_gaps: float = 0

    def add(self, other: "Spent") -> None:
        """Add the times and gaps of another piece of the program."""
        self.python_s += other.python_s
        self.python_gaps += other.python_gaps
        self.native_s += other.native_s
        self.native_gaps += other.native_gaps

    def pass_by(self, seconds: float, *, native: bool) -> None:
        """Add one gap."""
        if native:
            self.native_s += seconds
            self.native_gaps += 1
        else:
            self.python_s += seconds
            self.python_gaps += 1

    def since(self, earlier: "Spent") -> "Spent":
        """Return what came after an earlier moment."""
        return Spent(
            self.python_s - earlier.python_s,
            self.python_gaps - earlier.python_gaps,
            self.native_s - earlier.native_s,
            self.native_gaps - earlier.native_gaps,
        )

    def share(self, part: float) -> "Spent":
        """Return so large a part of it."""
        return Spent(self.python_s * part, self.python_gaps * part, self.native_s * part, self.native_gaps * part)

    def net(self, toll: Toll) -> float:
        """Return the seconds that it takes when nothing is noted."""
        python_s = max(0.0, self.python_s - self.python_gaps * toll.note_s) / toll.slow_down
        return python_s + max(0.0, self.native_s - self.native_gaps * toll.note_s)


@dataclass(slots=True)
class Function:
    """What a function took: alone, and with all that it called."""

    own: Spent = field(default_factory=Spent)
    whole: Spent = field(default_factory=Spent)
    starts: Counter[int] = field(default_factory=Counter)
    """How often it was entered at each place: a generator is also entered where it had yielded."""
    lines: dict[int, Spent] = field(default_factory=dict)
    """What compiled functions took that it called at each place: a part of its own."""
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
    """What had been spent when it was entered."""
    outermost: bool
    native: int | None = None
    """Where it is inside a compiled function, if it is."""


@final
class Tally:
    """The sums of all pieces that were noted."""

    def __init__(self, pauses: Container[CodeType] = ()) -> None:
        self.functions: dict[CodeType, Function] = {}
        self._pauses = pauses
        """Functions that do not count, with all that they call."""

    def add(self, notes: Iterable[Note], stack: Sequence[CodeType], begun_s: float, ended_s: float) -> Spent:
        """Add a piece that began inside the functions of `stack`, the innermost last; return what it took."""
        piece = _Replay(self.functions, self._pauses, stack, begun_s)
        piece.run(notes, ended_s)
        return piece.spent


@final
class _Replay:
    """One piece, followed note by note."""

    def __init__(
        self,
        functions: dict[CodeType, Function],
        pauses: Container[CodeType],
        stack: Sequence[CodeType],
        begun_s: float,
    ) -> None:
        self._functions, self._pauses = functions, pauses
        self.spent = Spent()
        self._frames: list[_Frame] = []
        self._depth: Counter[CodeType] = Counter()
        self._last_s, self._deep_in_pause = begun_s, 0
        for code in stack:
            self._push(code)

    def run(self, notes: Iterable[Note], ended_s: float) -> None:
        """Follow the notes to the end; functions that go on then count up to there."""
        for what, code, place, now_s in notes:
            if self._deep_in_pause:
                self._deep_in_pause += (what == "call") - (what == "return")
                self._last_s = now_s
                continue
            self._pass(now_s)
            if what == "call":
                self._call(code, place)
            elif what == "return":
                self._return(code)
            elif self._frames and self._frames[-1].code is code:
                self._native(what, place)
        if not self._deep_in_pause:
            self._pass(ended_s)
        while self._frames:
            self._pop()

    def _pass(self, now_s: float) -> None:
        """Give the time since the last note to the function that was being executed."""
        passed_s, self._last_s = now_s - self._last_s, now_s
        place = self._frames[-1].native if self._frames else None
        self.spent.pass_by(passed_s, native=place is not None)
        if not self._frames:
            return
        function = self._of(self._frames[-1].code)
        function.own.pass_by(passed_s, native=place is not None)
        if place is not None:
            function.lines.setdefault(place, Spent()).pass_by(passed_s, native=True)

    def _call(self, code: CodeType, place: int) -> None:
        if code in self._pauses:
            self._deep_in_pause = 1
            return
        self._of(code).starts[place] += 1
        self._push(code)

    def _native(self, what: str, place: int) -> None:
        frame = self._frames[-1]
        frame.native = place if what == "c_call" else None
        if what == "c_call":
            self._of(frame.code).line_calls[place] += 1

    def _return(self, code: CodeType) -> None:
        # A note may be missing, where something else took the thread's profile function for a while.
        if any(frame.code is code for frame in self._frames):
            while self._pop() is not code:
                pass

    def _push(self, code: CodeType) -> None:
        self._depth[code] += 1
        self._frames.append(_Frame(code, replace(self.spent), self._depth[code] == 1))

    def _pop(self) -> CodeType:
        frame = self._frames.pop()
        self._depth[frame.code] -= 1
        if frame.outermost:
            self._of(frame.code).whole.add(self.spent.since(frame.before))
        return frame.code

    def _of(self, code: CodeType) -> Function:
        found = self._functions.get(code)
        if found is None:
            found = self._functions[code] = Function()
        return found


def sum_of(parts: Iterable[Spent]) -> Spent:
    """Add them all up."""
    total = Spent()
    for part in parts:
        total.add(part)
    return total


def slow_down() -> float:
    """Measure how many times as long Python takes in a thread that has a profile function."""

    def nothing(frame: FrameType, what: str, about: object) -> None:
        pass

    before, alone_s, noted_s = sys.getprofile(), [], []
    try:
        for _ in range(TRIES):  # in turn, so that both have the machine in the same state
            sys.setprofile(None)
            alone_s.append(_loop_s())
            sys.setprofile(nothing)
            noted_s.append(_loop_s())
    finally:
        sys.setprofile(before)
    return max(1.0, min(noted_s) / min(alone_s))


def _loop_s() -> float:
    begun_s, total = time.perf_counter(), 0
    for i in range(1000):
        total += i * i
    return time.perf_counter() - begun_s
