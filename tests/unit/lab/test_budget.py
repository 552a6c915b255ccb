"""Laws of how steps and repeats are chosen to fit a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import UserError
from manyhands.lab.budget import (
    MAX_REPEATS,
    MIN_REPEATS,
    MIN_STEPS,
    MIN_TRAIN_S,
    Pilot,
    choose,
    choose_repeats,
    parse_duration,
)

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
    assert MIN_STEPS <= choice.steps <= max(MIN_STEPS, own_steps)
    assert MIN_REPEATS <= choice.repeats <= MAX_REPEATS


@given(pilots, budgets, own)
def test_it_fits_or_is_as_short_as_it_may_be(found: list[Pilot], left_s: float, own_steps: int) -> None:
    choice = choose(found, left_s, own_steps=own_steps)
    if takes_s(found, choice.steps, choice.repeats) > left_s:
        short = max(MIN_STEPS, len(found) * MIN_TRAIN_S / sum(p.step_s for p in found))
        assert choice.repeats == MIN_REPEATS
        assert choice.steps <= short


@given(pilots, budgets, own)
def test_steps_grow_before_repeats(found: list[Pilot], left_s: float, own_steps: int) -> None:
    choice = choose(found, left_s, own_steps=own_steps)
    if choice.repeats > MIN_REPEATS:
        one_more = choice.steps + 1
        assert choice.steps >= own_steps or takes_s(found, one_more, MIN_REPEATS) > 0.9 * left_s


@given(pilots, budgets, own, st.floats(1, 10))
def test_more_time_never_means_less_work(found: list[Pilot], left_s: float, own_steps: int, factor: float) -> None:
    short, long = (choose(found, s, own_steps=own_steps) for s in (left_s, left_s * factor))
    assert long.steps >= short.steps
    assert long.steps * long.repeats >= short.steps * short.repeats


def test_known_answers() -> None:
    cells = [Pilot(fixed_s=2, step_s=0.01), Pilot(fixed_s=4, step_s=0.02)]
    assert choose(cells, 100, own_steps=10_000).steps == 433, "(100 × 0.95 / 5 − 6) / 0.03"
    roomy = choose(cells, 1000, own_steps=1000)
    assert (roomy.steps, roomy.repeats) == (1000, MAX_REPEATS)
    some = choose(cells, 300, own_steps=1000)
    assert (some.steps, some.repeats) == (1000, 7), "a repeat of 1000 steps takes 36 s"
    tight = choose(cells, 1, own_steps=1000)
    assert (tight.steps, tight.repeats) == (33, MIN_REPEATS), "half a second of steps costs little beside the start"


@given(pilots, budgets, own, st.integers(1, 40))
def test_given_repeats_stay(found: list[Pilot], left_s: float, own_steps: int, repeats: int) -> None:
    assert choose(found, left_s, own_steps=own_steps, repeats=repeats).repeats == repeats


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), budgets)
def test_repeats_of_given_steps_fit_or_are_the_fewest(each_s: list[float], left_s: float) -> None:
    repeats = choose_repeats(each_s, left_s)
    assert repeats == MIN_REPEATS or repeats * sum(each_s) <= left_s
    assert repeats == MAX_REPEATS or (repeats + 1) * sum(each_s) > left_s * 0.9
