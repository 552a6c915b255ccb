"""The rules by which a figure of ours is held against a published one. All tolerances stand here.

Seconds of another machine are never judged, only shown with their ratio: what a paper says about scaling is in its
speed-ups, what it says about learning in its accuracies.
"""

from collections.abc import Callable, Iterable

from manyhands.measurement.stats import through
from manyhands.record.papers import FigureKind, PaperFigure, Verdict
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import Published

SPEED_PCT = 15.0
ACCURACY_POINTS = 0.5
LOSS_PCT = 25.0
SHARE_POINTS = 10.0
WIDEST_PCT = 50.0
"""Half the width of an interval, in per cent of its value, beyond which repeats say nothing about speed."""

RULES = (
    f"speed-up and efficiency: reproduced within ±{SPEED_PCT:g} % of the published figure (within the published range, "
    "where there is one), or where the interval of our repeats holds it (of 95 %; of fewer than 6 repeats, from the "
    "smallest to the largest); better above, not reproduced below",
    "improvement (T1 − Tn) / T1: judged as the speed-up T1 / Tn that it stands for",
    f"not judged where repeats differ by more than ±{WIDEST_PCT:g} % from their median",
    f"accuracy: reproduced within ±{ACCURACY_POINTS:g} points; better above, not reproduced below",
    f"loss: reproduced within ±{LOSS_PCT:g} %; better below, not reproduced above",
    f"shares of the time: reproduced within ±{SHARE_POINTS:g} points; counts: equal",
    "seconds are not judged: they are another machine's; (36×) means that it took 36 times as long there",
    "† oversubscribed: more workers than cores; such times say nothing about speed-up, whatever they are",
)

SPEEDS: tuple[FigureKind, ...] = ("speed-up", "improvement")
"""Kinds of which a crowded machine says nothing."""


def judge(kind: FigureKind, published: Published, ours: Interval) -> Verdict:
    """Compare a figure of ours with the published one."""
    return _JUDGES[kind](published, ours)


def crowded(workers: int, cores: int, *, in_turn: bool = False) -> str:
    """Say why a row of more workers than cores is not judged."""
    where = f"{cores} core{'s' if cores > 1 else ''}"
    if in_turn:
        return f"{workers} nodes took turns on {where}, which says nothing about speed-up"
    return f"{workers} workers on {where} say nothing about speed-up"


def row_verdict(figures: Iterable[PaperFigure]) -> Verdict:
    """Sum up the verdicts of a row's figures: what went wrong first, then what is not known, then what is."""
    found = {figure.verdict for figure in figures}
    for verdict in _FIRST_TO_LAST:
        if verdict in found:
            return verdict
    return "shown"


def row_why(figures: Iterable[PaperFigure], verdict: Verdict) -> str:
    """Say what led to a row's verdict, and what became of its other figures."""
    said: dict[str, list[str]] = {}
    for figure in sorted(figures, key=lambda figure: _FIRST_TO_LAST.index(figure.verdict)):
        what = "not reproduced" if figure.verdict == "not" else figure.verdict
        if figure.verdict in ("shown", "baseline") or (figure.kind == "time" and figure.ours):
            continue  # nothing to judge, or nothing that ever is
        if figure.why:
            said.setdefault(f"{what}: {figure.why}", []).append(figure.column)
        elif figure.verdict != verdict:
            said.setdefault(what, []).append(figure.column)
    return "; ".join(f"{', '.join(columns)} {what}" for what, columns in said.items())


_FIRST_TO_LAST: tuple[Verdict, ...] = (
    *("failed", "not", "oversubscribed", "better", "reproduced"),
    *("baseline", "not judged", "shown"),
)  # fmt: skip


def _speed_up(published: Published, ours: Interval) -> Verdict:
    if ours.high - ours.low > 2 * WIDEST_PCT / 100 * ours.value:
        return "not judged"
    if ours.low <= published.high and published.low <= ours.high:
        return "reproduced"
    slack = 0.0 if published.is_range else SPEED_PCT / 100
    return _between(ours.value, published.low * (1 - slack), published.high * (1 + slack), above="better")


def _improvement(published: Published, ours: Interval) -> Verdict:
    low, high = (_speed_up_of(value) for value in (published.low, published.high))
    return _speed_up(Published(published.text, low, high), through(_speed_up_of, ours))


def _speed_up_of(improvement_pct: float) -> float:
    return 1 / (1 - improvement_pct / 100)


def _accuracy(published: Published, ours: Interval) -> Verdict:
    low, high = published.low - ACCURACY_POINTS, published.high + ACCURACY_POINTS
    return _between(ours.value, low, high, above="better")


def _loss(published: Published, ours: Interval) -> Verdict:
    low, high = published.low * (1 - LOSS_PCT / 100), published.high * (1 + LOSS_PCT / 100)
    return _between(ours.value, low, high, below="better")


def _share(published: Published, ours: Interval) -> Verdict:
    return _between(ours.value, published.low - SHARE_POINTS, published.high + SHARE_POINTS)


def _count(published: Published, ours: Interval) -> Verdict:
    return _between(ours.value, published.low, published.high)


def _time(published: Published, ours: Interval) -> Verdict:
    return "shown"


def _between(value: float, low: float, high: float, *, below: Verdict = "not", above: Verdict = "not") -> Verdict:
    if value < low:
        return below
    return above if value > high else "reproduced"


_JUDGES: dict[FigureKind, Callable[[Published, Interval], Verdict]] = {
    "speed-up": _speed_up,
    "improvement": _improvement,
    "accuracy": _accuracy,
    "loss": _loss,
    "share": _share,
    "count": _count,
    "time": _time,
}
