"""Some steps are timed call by call, what that costs is taken off, and what others did to them is left out."""

import sys
from collections.abc import Callable
from types import CodeType

import pytest

from manyhands.profiling.functions import file_of, line_of, name_of
from manyhands.profiling.lens import Lens, Pace
from manyhands.record.run import Pulse


class Followed:
    """A watch that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def at(self, step: int) -> None:
        self.told.append(step)

    def stop_asked(self) -> bool:
        return True

    def pulse(self, pulse: Pulse) -> None:
        raise AssertionError


class Ticks:
    """A clock that goes on when it is read, by what a note costs, and when something is spent."""

    def __init__(self, per_reading: int = 0) -> None:
        self._ticks: list[int] = []
        self.spend: Callable[[range], None] = self._ticks.extend
        self._per_reading = range(per_reading)

    def __call__(self) -> int:
        self._ticks.extend(self._per_reading)
        return len(self._ticks)


class Loop:
    """A made-up training: a quarter of each step goes to one function, three quarters to another."""

    def __init__(self, ticks: Ticks) -> None:
        self.spend = ticks.spend

    def forward(self) -> None:
        self.spend(range(100))

    def backward(self) -> None:
        self.spend(range(300))

    def evaluate(self) -> None:
        self.spend(range(5000))

    def average(self) -> None:
        """Happen every eighth step."""

    def run(self, lens: Lens, steps: int) -> None:
        for step in range(steps):
            lens.at(step)
            self.forward()
            self.backward()
            if step % 4 == 3:
                self.evaluate()
            if step % 8 == 0:
                self.average()


def looked(ticks: Ticks, pace: Pace, steps: int, interruptions: Callable[[], int] = lambda: 0) -> Lens:
    """Let a lens look at the made-up training."""
    pauses = frozenset({Loop.evaluate.__code__})
    lens = Lens(Followed(), pace, within=Loop.run.__code__, pauses=pauses, clock=ticks, interruptions=interruptions)
    Loop(ticks).run(lens, steps)
    lens.close()
    lens.finish()
    return lens


def counts(lens: Lens) -> tuple[int, int, int]:
    """Return the numbers of all steps, of those timed call by call, and of those left out."""
    profile = lens.to_json()
    return profile["steps"], profile["timed_steps"], profile["disturbed_steps"]


def shares(lens: Lens) -> dict[str, float]:
    found = {code.co_name: f.self_time.net(lens.toll()) for code, f in lens.tally.functions.items()}
    return {name: seconds / sum(found.values()) for name, seconds in found.items() if seconds}


@pytest.mark.parametrize("cost", [0, 1, 5])
def test_known_shares_are_found_whatever_a_note_costs(cost: int) -> None:
    lens = looked(Ticks(cost), Pace(2, 3), 200)
    assert shares(lens) == pytest.approx({"forward": 0.25, "backward": 0.75})
    assert lens.toll().note_s == pytest.approx(cost)
    assert lens.plain_step_s == 400 + cost, "the clock is read once on the way"


@pytest.mark.parametrize(("pace", "steps", "timed"), [(Pace(2, 3), 20, 6), (Pace(0, 5), 11, 2), (Pace(30, 3), 20, 0)])
def test_one_step_in_so_many_is_timed_and_its_calls_are_counted(pace: Pace, steps: int, timed: int) -> None:
    lens = looked(Ticks(), pace, steps)
    assert counts(lens) == (steps, timed, 0)
    calls = {code.co_name: f.calls for code, f in lens.tally.functions.items()}
    calls.pop("average", None)
    assert calls == ({"run": 0, "forward": timed, "backward": timed} if timed else {})


def test_of_what_happens_every_eighth_step_an_eighth_is_counted() -> None:
    lens = looked(Ticks(), Pace(3, 7), 3 + 7 * 80)
    assert counts(lens)[1] == 80
    assert {code.co_name: f.calls for code, f in lens.tally.functions.items()}["average"] == 10


def test_a_step_that_was_interrupted_is_left_out() -> None:
    count = iter(range(1000))
    # Asked before and after each timed step: the number changes within the second, fourth, ... step.
    lens = looked(Ticks(), Pace(0, 3), 40, lambda: [0, 0, 0, 1][next(count) % 4])
    assert counts(lens) == (40, 7, 6)


def test_where_nearly_all_were_interrupted_none_is_left_out() -> None:
    count = iter(range(1000))
    lens = looked(Ticks(), Pace(0, 3), 40, lambda: next(count))
    assert counts(lens) == (40, 13, 0)
    assert shares(lens) == pytest.approx({"forward": 0.25, "backward": 0.75})


def test_many_notes_are_summed_up_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = looked(Ticks(), Pace(0, 3), 40).to_json()
    monkeypatch.setattr("manyhands.profiling.lens.KEPT_NOTES", 20)
    assert looked(Ticks(), Pace(0, 3), 40).to_json() == whole


def test_a_lens_passes_on_and_lets_go_when_the_run_fails() -> None:
    inner, before = Followed(), sys.getprofile()
    lens = Lens(inner, Pace(0, 3), within=test_a_lens_passes_on_and_lets_go_when_the_run_fails.__code__)
    lens.at(0)
    try:
        assert sys.getprofile() is not before
    finally:
        lens.close()
    assert sys.getprofile() is before
    assert inner.told == [0]
    assert lens.stop_asked()
    lens.finish()
    assert counts(lens)[1] == 0, "a step that has not ended has no time"
    assert lens.to_json()["functions"] == []


def _codes() -> dict[str, CodeType]:
    def inner() -> None: ...

    nameless: Callable[[], None] = lambda: None  # noqa: E731
    return {"method": Lens.at.__code__, "inner": inner.__code__, "nameless": nameless.__code__}


def test_names_are_as_one_would_say_them() -> None:
    codes = _codes()
    assert name_of(codes["method"]) == "Lens.at"
    assert name_of(codes["inner"]) == "inner"
    assert name_of(codes["nameless"]) == "lambda in _codes"


def test_files_are_told_from_where_python_found_them() -> None:
    assert file_of(Lens.at.__code__) == "manyhands/profiling/lens.py"
    nowhere = compile("0", "<made up>", "eval")
    assert file_of(nowhere) == "<made up>"


def test_a_place_in_a_function_has_its_line() -> None:
    code = compile("a = 1\nb = 2\n", "<two lines>", "exec")
    lines = [line_of(code, place) for place in range(0, len(code.co_code), 2)]
    assert {1, 2} <= set(lines)
    assert lines == sorted(lines)
