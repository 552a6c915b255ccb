"""The rules of verdicts, on made-up figures whose verdict is plain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.record.papers import FigureKind, PaperFigure, Verdict
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import printed
from manyhands.reproduction.compare import IN_SMALLER_BATCHES, WORDS, where_time_went
from manyhands.reproduction.verdict import RULES, SPEED_PCT, WIDEST_PCT, judge, row_verdict, row_why


def exactly(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


@pytest.mark.parametrize(
    ("kind", "published", "ours", "verdict"),
    [
        ("speed-up", "2.00", 2.25, "reproduced"),
        ("speed-up", "2.00", 2.35, "better"),
        ("speed-up", "2.00", 1.75, "reproduced"),
        ("speed-up", "2.00", 1.65, "not"),
        ("speed-up", "2.5–3.5", 2.49, "not"),
        ("speed-up", "2.5–3.5", 2.51, "reproduced"),
        ("speed-up", "2.5–3.5", 3.51, "better"),
        ("improvement", "50", 50, "reproduced"),
        ("improvement", "50", 60, "better"),
        ("improvement", "50", 40, "not"),
        ("improvement", "−48.08", 40, "better"),
        ("accuracy", "98.80", 98.31, "reproduced"),
        ("accuracy", "98.80", 98.29, "not"),
        ("accuracy", "98.80", 99.31, "better"),
        ("loss", "0.100", 0.124, "reproduced"),
        ("loss", "0.100", 0.126, "not"),
        ("loss", "0.100", 0.074, "better"),
        ("share", "56.53", 47, "reproduced"),
        ("share", "56.53", 67, "not"),
        ("count", "235,146", 235_146, "reproduced"),
        ("count", "235,146", 235_147, "not"),
        ("time", "43.67", 0.01, "shown"),
    ],
)
def test_a_plain_figure_has_a_plain_verdict(kind: FigureKind, published: str, ours: float, verdict: Verdict) -> None:
    assert judge(kind, printed(published), exactly(ours)) == verdict


def test_an_interval_that_holds_the_published_speed_up_reproduces_it() -> None:
    assert judge("speed-up", printed("2.00"), Interval(value=1.6, low=1.5, high=2.01)) == "reproduced"
    assert judge("speed-up", printed("2.00"), Interval(value=1.6, low=1.5, high=1.99)) == "not"


def test_repeats_that_differ_too_much_are_not_judged() -> None:
    assert judge("speed-up", printed("2.00"), Interval(value=2.0, low=0.5, high=3.0)) == "not judged"


@given(published=st.floats(0.1, 20), ours=st.floats(0.1, 20), better=st.floats(1, 3))
def test_a_higher_speed_up_is_never_judged_worse(published: float, ours: float, better: float) -> None:
    order: list[Verdict] = ["not", "reproduced", "better"]
    figure = printed(f"{published:.4f}")
    low, high = (order.index(judge("speed-up", figure, exactly(s))) for s in (ours, ours * better))
    assert low <= high


@given(speed_up=st.floats(0.2, 20), published=st.floats(0.2, 20))
def test_an_improvement_is_judged_as_its_speed_up(speed_up: float, published: float) -> None:
    told, ours = ((1 - 1 / s) * 100 for s in (published, speed_up))
    as_improvement = judge("improvement", printed(f"{told:.9f}"), exactly(ours))
    if abs(abs(speed_up / published - 1) - SPEED_PCT / 100) > 1e-6:
        assert as_improvement == judge("speed-up", printed(f"{published:.9f}"), exactly(speed_up))


def test_the_tolerances_are_told() -> None:
    told = " ".join(RULES)
    assert f"±{SPEED_PCT:g} %" in told
    assert f"±{WIDEST_PCT:g} %" in told


def figure(verdict: Verdict, why: str = "", column: str = "speed-up") -> PaperFigure:
    return PaperFigure(column=column, kind="speed-up", verdict=verdict, why=why)


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        (["shown", "reproduced"], "reproduced"),
        (["reproduced", "better"], "better"),
        (["better", "not"], "not"),
        (["reproduced", "oversubscribed"], "oversubscribed"),
        (["oversubscribed", "not"], "not"),
        (["not", "failed"], "failed"),
        (["reproduced", "not judged"], "reproduced"),
        (["baseline", "shown"], "baseline"),
        (["baseline", "reproduced"], "reproduced"),
        (["shown", "not judged"], "not judged"),
        (["shown"], "shown"),
        ([], "shown"),
    ],
)
def test_a_row_is_what_its_worst_figure_is(figures: list[Verdict], verdict: Verdict) -> None:
    assert row_verdict([figure(v) for v in figures]) == verdict


def test_a_row_says_what_became_of_its_other_figures() -> None:
    figures = [
        figure("oversubscribed", "8 workers on 2 cores say nothing about speed-up"),
        figure("reproduced", column="accuracy %"),
        figure("shown", column="time s"),
    ]
    says = "speed-up oversubscribed: 8 workers on 2 cores say nothing about speed-up; accuracy % reproduced"
    assert row_why(figures, row_verdict(figures)) == says


@pytest.mark.parametrize("cause", WORDS)
def test_the_largest_loss_is_named(cause: str) -> None:
    alone = {"step_ms": 10.0, "compute_ms": 10.0, "serial_ms": 0.0, "comm_ms": 0.0, "wait_ms": 0.0, "batch_size": 64.0}
    own = {**alone, "step_ms": 8.0, "compute_ms": 5.0}
    own[cause] += 2.0
    other = next(name for name in WORDS if name != cause)
    own[other] += 1.0
    smaller = IN_SMALLER_BATCHES if cause == "compute_ms" else ""
    assert where_time_went(own, alone, 2) == f"25 % of a step went {WORDS[cause]}{smaller}"


def test_batches_are_not_called_smaller_that_are_not() -> None:
    alone = {"step_ms": 10.0, "compute_ms": 10.0, "serial_ms": 0.0, "comm_ms": 0.0, "wait_ms": 0.0, "batch_size": 64.0}
    own = {**alone, "step_ms": 20.0, "compute_ms": 20.0, "batch_size": 128.0}
    assert where_time_went(own, alone, 2) == f"50 % of a step went {WORDS['compute_ms']}"


def test_nothing_is_named_where_nothing_was_lost() -> None:
    alone = {"step_ms": 10.0, "compute_ms": 10.0, "serial_ms": 0.0, "comm_ms": 0.0, "wait_ms": 0.0, "batch_size": 64.0}
    own = {**alone, "step_ms": 5.0, "compute_ms": 5.0}
    assert where_time_went(own, alone, 2) == ""
    assert where_time_went({"total_s": 1.0}, alone, 2) == ""
