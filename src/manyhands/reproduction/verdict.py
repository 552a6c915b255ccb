"""The rules by which our figures are compared with published ones. All tolerances stand here.

Seconds of another machine are never judged, only shown with their ratio: what a paper says about scaling is in its
speed-ups, what it says about learning in its accuracies.
"""

from collections.abc import Iterable, Sequence

from manyhands.measurement.stats import through
from manyhands.record.papers import FigureKind, PaperFigure, Verdict
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import Published, Setting

SPEED_PCT = 15.0
ACCURACY_POINTS = 0.5
LOSS_PCT = 25.0
SHARE_POINTS = 10.0
WIDEST_PCT = 50.0
"""Half the width of an interval, in per cent of its value, beyond which speed is not judged."""

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
    "‡ predicted, not measured: simulated from a calibration of this machine for the paper's own workers or nodes, "
    "with a 90 % interval, or scheduled from measured folds; it agrees or disagrees by the same tolerances, and "
    "reproduces nothing",
)

SPEEDS: tuple[FigureKind, ...] = ("speed-up", "improvement")
"""Kinds that cannot be measured with more workers than cores."""
BY_WEIGHT: tuple[Verdict, ...] = (
    *("failed", "not", "oversubscribed", "better", "reproduced"),
    *("baseline", "not judged", "shown"),
)  # fmt: skip
"""The verdict of a row is the first of these that one of its figures has."""


PREDICTED = {
    "agrees": "agrees",
    "above": "disagrees, above",
    "below": "disagrees, below",
    "too wide": "its interval is too wide to judge",
}
"""Verdicts of predictions in words."""


def judge(kind: FigureKind, published: Published, ours: Interval) -> Verdict:
    """Compare a figure of ours with the published one."""
    value, low, high = ours.value, published.low, published.high
    match kind:
        case "time":
            return "shown"
        case "count":
            return _between(value, low, high)
        case "share":
            return _between(value, low - SHARE_POINTS, high + SHARE_POINTS)
        case "accuracy":
            return _between(value, low - ACCURACY_POINTS, high + ACCURACY_POINTS, above="better")
        case "loss":
            return _between(value, low * (1 - LOSS_PCT / 100), high * (1 + LOSS_PCT / 100), below="better")
        case "improvement":
            speed_ups = Published(published.text, _speed_up_of(low), _speed_up_of(high))
            return judge("speed-up", speed_ups, through(_speed_up_of, ours))
        case "speed-up":
            if ours.high - ours.low > 2 * WIDEST_PCT / 100 * value:
                return "not judged"
            if ours.low <= high and low <= ours.high:
                return "reproduced"
            slack = SPEED_PCT / 100 if low == high else 0.0
            return _between(value, low * (1 - slack), high * (1 + slack), above="better")


def _between(value: float, low: float, high: float, *, below: Verdict = "not", above: Verdict = "not") -> Verdict:
    if value < low:
        return below
    return above if value > high else "reproduced"


def _speed_up_of(improvement_pct: float) -> float:
    return 1 / (1 - improvement_pct / 100)


def crowded(setting: Setting, cores: int) -> str:
    """Say why a setting of more workers than cores is not judged."""
    where = f"{cores} core{'s' if cores > 1 else ''}"
    if "nodes" in setting.options:
        return f"{setting.workers} nodes took turns on {where}, which says nothing about speed-up"
    return f"{setting.workers} workers on {where} say nothing about speed-up"


def row_verdict(figures: Iterable[PaperFigure]) -> Verdict:
    """Return the weightiest verdict of a row's figures."""
    return min((figure.verdict for figure in figures), key=BY_WEIGHT.index, default="shown")


def row_why(figures: Sequence[PaperFigure], verdict: Verdict) -> str:
    """Give the reasons of a row's verdict, and the verdicts of its other figures."""
    columns: dict[str, list[str]] = {}
    for figure in sorted(figures, key=lambda figure: BY_WEIGHT.index(figure.verdict)):
        what = "not reproduced" if figure.verdict == "not" else figure.verdict
        if figure.verdict in ("shown", "baseline") or (figure.kind == "time" and figure.ours):
            continue  # nothing to judge, or nothing that ever is
        if figure.why:
            columns.setdefault(f"{what}: {figure.why}", []).append(figure.column)
        elif figure.verdict != verdict:
            columns.setdefault(what, []).append(figure.column)
    for figure in figures:
        if figure.predicted and figure.predicted.verdict:
            columns.setdefault(f"predicted: {PREDICTED[figure.predicted.verdict]}", []).append(figure.column)
    return "; ".join(f"{', '.join(names)} {what}" for what, names in columns.items())
