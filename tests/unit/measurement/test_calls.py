"""Every moment of a piece that was noted is some function's own, and of all functions that it stands in."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.measurement.calls import CallLog, Function, Spent, Tally, Toll, slow_down

FREE = Toll(0.0, 1.0)


class Time:
    """A clock that stands still but for what is spent on it, by a compiled function as a matrix product would be."""

    def __init__(self) -> None:
        ticks: list[int] = []
        self.now: Callable[[], int] = ticks.__len__
        self.spend: Callable[[range], None] = ticks.extend

    def profile(self, work: Callable[[], object], pauses: frozenset[CodeType] = frozenset()) -> dict[str, Function]:
        """Note a piece of work; return what its functions took, by name."""
        log = CallLog(self.now)
        log.open()
        work()
        notes = log.close()
        begin = next(i for i, note in enumerate(notes) if note[1] is work.__code__)  # type: ignore[attr-defined]
        tally = Tally(pauses)
        tally.add(notes[begin:], [], notes[begin][3], self.now())
        return {code.co_name: function for code, function in tally.functions.items()}


@pytest.fixture
def time() -> Time:
    return Time()


def test_time_is_the_innermost_functions_own_and_part_of_all_around(time: Time) -> None:
    def inner() -> None:
        time.spend(range(5))

    def outer() -> None:
        inner()
        time.spend(range(2))
        inner()

    found = time.profile(outer)
    assert (found["inner"].self_time.net(FREE), found["inner"].total_time.net(FREE), found["inner"].calls) == (
        10,
        10,
        2,
    )
    assert (found["outer"].self_time.net(FREE), found["outer"].total_time.net(FREE), found["outer"].calls) == (2, 12, 1)


def test_of_a_function_that_calls_itself_only_the_outermost_call_counts(time: Time) -> None:
    def down(n: int) -> None:
        time.spend(range(3))
        if n:
            down(n - 1)

    def work() -> None:
        down(4)
        down(0)

    found = time.profile(work)
    assert found["down"].calls == 6
    assert found["down"].self_time.net(FREE) == found["down"].total_time.net(FREE) == 18


def test_a_generator_is_called_once_however_often_it_goes_on(time: Time) -> None:
    def items() -> Iterator[int]:
        for i in range(3):
            time.spend(range(1))
            yield i

    def work() -> None:
        for _ in items():
            time.spend(range(10))
        for _ in items():
            break

    found = time.profile(work)
    assert found["items"].calls == 2
    assert (found["items"].self_time.net(FREE), found["work"].self_time.net(FREE)) == (4, 30)


def test_a_function_that_raises_has_ended(time: Time) -> None:
    def fails() -> None:
        time.spend(range(2))
        raise ValueError

    def work() -> None:
        for _ in range(3):
            try:
                fails()
            except ValueError:
                time.spend(range(1))

    found = time.profile(work)
    assert (found["fails"].calls, found["fails"].total_time.net(FREE), found["work"].self_time.net(FREE)) == (3, 6, 3)


def test_compiled_functions_are_told_by_the_line_that_calls_them(time: Time) -> None:
    def work() -> None:
        for _ in range(4):
            time.spend(range(1))
            time.spend(range(7))

    lines = time.profile(work)["work"].lines
    assert sorted(spent.net(FREE) for spent in lines.values())[-2:] == [4, 28]


def test_what_a_compiled_function_calls_in_python_is_not_the_lines(time: Time) -> None:
    def called(_: int) -> int:
        time.spend(range(10))
        return 0

    def work() -> None:
        sorted([1, 2, 3], key=called)

    found = time.profile(work)
    assert found["called"].self_time.net(FREE) == found["work"].total_time.net(FREE) == 30
    assert found["work"].self_time.net(FREE) == sum(spent.net(FREE) for spent in found["work"].lines.values()) == 0


def test_a_pause_is_nobodys_time(time: Time) -> None:
    def inside() -> None:
        time.spend(range(50))

    def pause() -> None:
        inside()
        time.spend(range(50))

    def work() -> None:
        time.spend(range(1))
        pause()
        time.spend(range(2))

    found = time.profile(work, pauses=frozenset({pause.__code__}))
    assert found["work"].total_time.net(FREE) == 3
    assert {"pause", "inside"}.isdisjoint(found)


def test_a_piece_may_begin_and_end_deep_inside(time: Time) -> None:
    log, tally, stack = CallLog(time.now), Tally(), []

    def begin() -> None:
        stack.append(sys._getframe().f_code)
        time.spend(range(100))
        log.open()
        time.spend(range(1))

    def end() -> None:
        time.spend(range(2))
        stack.append(log.close())
        time.spend(range(100))

    def work() -> None:
        begin()
        time.spend(range(4))
        end()

    work()
    notes = stack.pop()
    tally.add(notes, [work.__code__, begin.__code__], 100, time.now() - 100)
    found = {
        code.co_name: (f.self_time.net(FREE), f.total_time.net(FREE), f.calls) for code, f in tally.functions.items()
    }
    assert found["work"] == (4, 7, 0)
    assert found["begin"] == (1, 1, 0)
    assert found["end"] == (2, 2, 1)


Tree = tuple[int, int, list["Tree"]]
"""Which function, how long it takes itself, and what it calls."""
TREES = st.recursive(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.just([])),
    lambda trees: st.tuples(st.integers(0, 2), st.integers(0, 9), st.lists(trees, max_size=4)),
    max_leaves=25,
)


@given(tree=TREES)
def test_any_tree_of_calls_is_told_as_it_was(tree: Tree) -> None:
    time = Time()

    def spend(tree: Tree) -> None:
        time.spend(range(tree[1]))

    def a(tree: Tree) -> None:
        run(tree)

    def b(tree: Tree) -> None:
        run(tree)

    def c(tree: Tree) -> None:
        run(tree)

    def run(tree: Tree) -> None:
        spend(tree)
        for below in tree[2]:
            (a, b, c)[below[0]](below)

    def work() -> None:
        (a, b, c)[tree[0]](tree)

    found = time.profile(work)
    calls: Counter[str] = Counter()
    whole: Counter[str] = Counter()

    def expect(tree: Tree, inside: frozenset[str]) -> int:
        name = "abc"[tree[0]]
        seconds = tree[1] + sum(expect(below, inside | {name}) for below in tree[2])
        calls[name] += 1
        whole[name] += 0 if name in inside else seconds
        return seconds

    total = expect(tree, frozenset())
    assert {name: found[name].calls for name in calls} == calls
    assert {name: found[name].total_time.net(FREE) for name in calls} == whole
    assert found["spend"].self_time.net(FREE) == total == sum(f.self_time.net(FREE) for f in found.values())


def test_the_toll_is_taken_off_but_nothing_beyond_it() -> None:
    spent = Spent(python_s=9.0, python_gaps=3, native_s=5.0, native_gaps=2)
    assert spent.net(Toll(note_s=1.0, slow_down=2.0)) == (9 - 3) / 2 + (5 - 2)
    assert spent.net(Toll(note_s=4.0, slow_down=1.0)) == 0
    assert spent.plus(spent) == Spent(18.0, 6, 10.0, 4)


def test_a_log_leaves_the_profile_function_that_was_there() -> None:
    seen = []

    def other(*about: object) -> None:
        seen.append(about)

    before, log = sys.getprofile(), CallLog()
    try:
        sys.setprofile(other)
        log.open()
        log.close()
        assert sys.getprofile() is other
        slow_down()
        assert sys.getprofile() is other
    finally:
        sys.setprofile(before)


def test_python_is_no_quicker_for_being_noted() -> None:
    assert slow_down() >= 1
