"""Laws of how steps and repeats are chosen to fit a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import UserError
from manyhands.measurement.budget import (
    MAX_REPEATS,
    MIN_REPEATS,
    MIN_STEPS,
    PILOT_STEPS,
    Clock,
    Pilot,
    RunLength,
    around_pilot,
    choose,
    fitting,
    least_s,
    parse_duration,
    plain_duration,
    steps_of_pilot,
    too_short,
)
from manyhands.record.sweep import Cell

pilots = st.lists(st.builds(Pilot, fixed_s=st.floats(0.1, 20), step_s=st.floats(1e-5, 5)), min_size=1, max_size=12)
budgets = st.floats(1, 1e5)
own = st.integers(1, 100_000)


def takes_s(found: list[Pilot], steps: int, repeats: int) -> float:
    return repeats * sum(p.takes_s(steps) for p in found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h", 3600), ("1m30s", 90), ("45", 45), ("1.5m", 90), ("1h2m3s", 3723), (" 5m ", 300)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "-5m", "5 minutes", "m", "1s5m", "1m30", "nan", "inf", "1e3"])
def test_a_bad_duration_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="a budget is written like 90s, 5m, 1h or 1m30s, got"):
        parse_duration(text)


@given(pilots, budgets, own)
def test_never_less_than_statistics_need_nor_more_than_the_task_trains(
    found: list[Pilot], left_s: float, own_steps: int
) -> None:
    choice = choose(found, left_s, own_steps=own_steps)
    if choice is not None:
        assert MIN_STEPS <= choice.steps <= max(MIN_STEPS, own_steps)
        assert MIN_REPEATS <= choice.repeats <= MAX_REPEATS


@given(pilots, st.floats(-10, 1e5), own, st.integers(0, 20))
def test_what_is_chosen_fits_into_the_time(found: list[Pilot], left_s: float, own_steps: int, repeats: int) -> None:
    choice = choose(found, left_s, own_steps=own_steps, repeats=repeats)
    assert choice is None or takes_s(found, choice.steps, choice.repeats) <= left_s
    short = around_pilot(found, left_s, steps=12, repeats=repeats)
    assert short.repeats >= 1, "the pilot has been run"
    assert short.repeats == 1 or takes_s(found, 12, short.repeats - 1) <= left_s
    assert short.repeats <= (repeats or MIN_REPEATS)


@given(pilots, budgets, own)
def test_steps_grow_before_repeats(found: list[Pilot], left_s: float, own_steps: int) -> None:
    choice = choose(found, left_s, own_steps=own_steps)
    if choice is not None and choice.repeats > MIN_REPEATS:
        one_more = choice.steps + 1
        assert choice.steps >= own_steps or takes_s(found, one_more, MIN_REPEATS) > 0.9 * left_s


@given(pilots, budgets, own, st.floats(1, 10))
def test_more_time_never_means_less_work(found: list[Pilot], left_s: float, own_steps: int, factor: float) -> None:
    short, long = (choose(found, s, own_steps=own_steps) for s in (left_s, left_s * factor))
    if short is not None:
        assert long is not None
        assert long.steps >= short.steps
        assert long.steps * long.repeats >= short.steps * short.repeats


def test_known_answers() -> None:
    cells = [Pilot(fixed_s=2, step_s=0.01), Pilot(fixed_s=4, step_s=0.02)]
    assert choose(cells, 100, own_steps=10_000) == RunLength(433, 5), "(100 × 0.95 / 5 − 6) / 0.03"
    assert choose(cells, 1000, own_steps=1000) == RunLength(1000, MAX_REPEATS)
    assert choose(cells, 300, own_steps=1000) == RunLength(1000, 7), "a repeat of 1000 steps takes 36 s"
    assert choose(cells, 36, own_steps=1000) is None, "5 repeats of 33 steps take 37 s with what is kept in hand"
    assert around_pilot(cells, 36, steps=20) == RunLength(20, 5, counts_pilot=True), "of 6.6 s each"
    assert around_pilot(cells, 14, steps=20) == RunLength(20, 3, counts_pilot=True)
    assert around_pilot(cells, 14, steps=20, repeats=2) == RunLength(20, 2, counts_pilot=True)


@given(pilots, budgets, own, st.integers(1, 40))
def test_given_repeats_stay(found: list[Pilot], left_s: float, own_steps: int, repeats: int) -> None:
    choice = choose(found, left_s, own_steps=own_steps, repeats=repeats)
    assert choice is None or choice.repeats == repeats


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(-10, 1e5))
def test_as_many_repeats_as_fit(each_s: list[float], left_s: float) -> None:
    repeats = fitting(each_s, left_s)
    assert repeats == 0 or repeats * sum(each_s) <= left_s
    assert (repeats + 1) * sum(each_s) >= left_s * 0.9 or repeats == 10**6


def test_a_clock_runs_from_when_the_command_was_given() -> None:
    now_s = 100.0
    clock = Clock(60.0, spent_s=5.0, now=lambda: now_s, reserve_s=10.0)
    assert (clock.elapsed_s, clock.left_s) == (5.0, 45.0)
    now_s += 50
    assert (clock.elapsed_s, clock.left_s) == (55.0, -5.0)
    assert Clock().left_s == float("inf"), "steps and repeats that are given take as long as they take"


def test_the_least_is_every_cell_once_and_the_budget_that_is_advised_has_room_for_it() -> None:
    cells = [
        Cell(role=role, engine=engine, workers=1, batch_size=64)  # type: ignore[arg-type]
        for role, engine in (("baseline", "serial"), ("probe", "serial"), ("cell", "threads"), ("cell", "mpi"))
    ]
    takes_s = least_s(cells, 3.0, 0.1)
    assert takes_s == pytest.approx(4 * 3.0 + 3 * 10 * 0.1), "without the probe; mpi starts two in a row; 10 steps"
    clock = Clock(10.0, spent_s=3.0, now=lambda: 0.0, reserve_s=2.0)
    sentence = too_short("10s", clock, cells, takes_s)
    assert "each of 3 cells takes about 15.0 s, but only 5.00 s are left of --budget 10s" in sentence
    assert "give --budget 30s" in sentence
    assert "--over-budget" in sentence
    enough = Clock(30.0, spent_s=3.0, now=lambda: 0.0, reserve_s=2.0)
    assert enough.left_s > takes_s


@given(st.floats(1e-6, 1e4))
def test_a_pilot_has_few_long_steps_or_many_short_ones(step_s: float) -> None:
    assert PILOT_STEPS[0] <= steps_of_pilot(step_s) <= PILOT_STEPS[1]
    assert steps_of_pilot(step_s) >= steps_of_pilot(2 * step_s)


@given(st.floats(0.1, 1e5))
def test_a_budget_that_is_advised_can_be_typed_and_is_no_shorter(seconds: float) -> None:
    assert parse_duration(plain_duration(seconds)) >= seconds
