"""The figures of a sweep, for plotly: speed-up, efficiency, weak scaling, time split, lost percents, accuracy."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

from manyhands.record import Cause, Interval, Row, SweepRecord
from manyhands.record.texts import cell_names, coverage, duration, has_width, in_brackets, with_coverage
from manyhands.report.curves import Curve, curves, fitted_speed_up, reach
from manyhands.report.drawing import Figure, Trace, View, doubling_axis, layout, safe, straight, workers_axis
from manyhands.report.palette import DASHES, MARKERS, engine_colour
from manyhands.report.stacks import PARTS, split_figure, stack_height, stack_layout, stack_trace
from manyhands.report.tables import LAWS

REACH = 1.25
"""How far beyond the most workers a fitted law is drawn."""


def sweep_figures(record: SweepRecord) -> list[Figure]:
    """Return all figures that the record alone can fill."""
    drawn = [curve for curve in curves(record) if curve.rows]
    found: list[Figure] = []
    if any(row.speed_up for curve in drawn for row in curve.rows):
        found += [speed_up(record, drawn), efficiency(drawn)]
    if record.kind == "weak" and drawn:
        found.append(weak(drawn))
    if any(row.repeats for row in record.rows):
        found.append(split(record))
    if any(finding.parts for finding in record.findings):
        found.append(lost(record))
    if drawn:
        found.append(accuracy(drawn))
    return found


def speed_up(record: SweepRecord, drawn: Sequence[Curve]) -> Figure:
    """Draw speed-up against workers, beside the ideal, with intervals and the fitted laws."""
    most = max(row.cell.size for curve in drawn for row in curve.rows)
    measured = _all_points(drawn, lambda row: row.speed_up, "×")
    fits = [(fit, curve) for curve in drawn for fit in curve.fits if fit.describes]
    laws = [law for law in reversed(LAWS) if any(fit.law == law for fit, _ in fits)]
    data = [straight("ideal", [1, most * REACH], [1, most * REACH]), *measured]
    for fit, curve in fits:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{safe(curve.name)}, {LAWS[fit.law]}",
                "x": (xs := [round(1 + i * (most * REACH - 1) / 60, 4) for i in range(61)]),
                "y": [round(fitted_speed_up(fit, n), 5) for n in xs],
                "line": {"color": engine_colour(curve.engine), "width": 1.5, "dash": "dot"},
                "showlegend": False,
                "legendgroup": safe(curve.name),
                "hovertemplate": f"{safe(curve.name)}, {LAWS[fit.law]}: %{{y:.2f}}×<extra></extra>",
            }
        )
    views = [
        View(label, {"visible": [True] * (1 + len(measured)) + [fit.law == law for fit, _ in fits]})
        for law, label in [*((law, LAWS[law]) for law in laws), ("", "none")]
    ]
    highest = max([1.0, *(row.speed_up.high for curve in drawn for row in curve.rows if row.speed_up)])
    title = "speed-up over one worker"
    y = doubling_axis(title) if most > 8 else {"title": title, "range": [0, 1.06 * max(most, highest)]}
    kind = "Samples per second against those of one worker" if record.kind == "weak" else "How many times as fast"
    return Figure(
        id="speed-up",
        title="Speed-up",
        about=f"{kind}; {_bars(drawn)}the dashed line is the ideal"
        f"{', dotted lines are the law fitted' if fits else ''}{_hollow(drawn)}.",
        says="Speed-up over workers. " + _said(drawn, lambda row: row.speed_up, lambda v: f"{v:.2f} times"),
        data=data,
        layout=layout(workers_axis([1, *_counts(drawn)], most * REACH), y),
        choose="Fitted law" if fits else "",
        views=views if fits else [],
    )


def efficiency(drawn: Sequence[Curve]) -> Figure:
    """Draw efficiency against workers."""
    most = max(row.cell.size for curve in drawn for row in curve.rows)
    values = [row.efficiency for curve in drawn for row in curve.rows if row.efficiency]
    top = max([1.0, *(interval.high for interval in values)])
    y = {"title": "efficiency", "range": [0, 108 * top], "ticksuffix": " %"}
    return Figure(
        id="efficiency",
        title="Efficiency",
        about="Speed-up as a share of the number of workers: 100 % is the ideal, what is missing is lost"
        f"{_hollow(drawn)}.",
        says="Efficiency over workers. " + _said(drawn, lambda row: row.efficiency, lambda v: f"{100 * v:.0f} percent"),
        data=[
            straight("ideal", [1, most * REACH], [100, 100]),
            *_all_points(drawn, lambda row: row.efficiency, " %", 100),
        ],
        layout=layout(workers_axis([1, *_counts(drawn)], most * REACH), y),
    )


def weak(drawn: Sequence[Curve]) -> Figure:
    """Draw the time of a step against workers that each have a batch of their own."""
    most = max(row.cell.size for curve in drawn for row in curve.rows)
    alone = [c.baseline.step_ms.value for c in drawn if c.baseline and c.baseline.step_ms]
    ideal = [straight("ideal", [1, most * REACH], [alone[0], alone[0]])] if len(set(alone)) == 1 else []
    return Figure(
        id="weak",
        title="Weak scaling",
        about=f"Time of a step while every worker keeps a batch of its own: the ideal stays flat{_hollow(drawn)}.",
        says="Time per step over workers. " + _said(drawn, lambda row: row.step_ms, lambda v: duration(v / 1e3)),
        data=[*ideal, *_all_points(drawn, lambda row: row.step_ms, " ms")],
        layout=layout(
            workers_axis([1, *_counts(drawn)], most * REACH),
            {"title": "time per step", "rangemode": "tozero", "ticksuffix": " ms"},
        ),
    )


def split(record: SweepRecord) -> Figure:
    """Draw where a step's time goes, as a stack for each row."""
    rows = [row for row in record.rows if row.repeats]
    return split_figure(
        "split",
        "Where a step's time goes",
        "Compute is shared out over the workers; serial is what every worker repeats; comm is what the exchanges took; "
        "wait is time spent waiting for the slowest worker.",
        row_labels(record, rows),
        [{part: float(getattr(row, f"{part}_ms")) for part in PARTS} for row in rows],
    )


CAUSES = {
    "comm": "communication",
    "wait": "waiting",
    "serial": "serial work",
    "small-batch": "small batches",
    "oversubscription": "oversubscription",
    "memory": "sharing the machine",
    "unclear": "small batches or sharing the machine",
}
"""Causes of lost time, and how they are called."""


def lost(record: SweepRecord) -> Figure:
    """Draw what became of the workers' time: work done, and where the rest was lost."""
    found = {finding.row: finding for finding in record.findings if finding.parts}
    rows = [row for row in record.rows if row.cell.key in found and row.efficiency]
    names = row_labels(record, rows)
    done = [round(100 * row.efficiency.value, 3) for row in rows if row.efficiency]
    data = [stack_trace("work done", "work", names, done)]
    for cause in get_args(Cause):
        values = [sum(p.percent for p in found[row.cell.key].parts if p.cause == cause) for row in rows]
        if any(abs(value) >= 0.05 for value in values):
            data.append(stack_trace(CAUSES[cause], cause, names, [round(value, 3) for value in values]))
    says = "; ".join(
        f"{name}: " + ", ".join(f"{trace['name']} {trace['x'][i]:.0f} percent" for trace in data if trace["x"][i])
        for i, name in enumerate(names)
    )
    return Figure(
        id="lost",
        title="Where the lost percents went",
        about="All that the workers could do at best is 100 %: what they did, and what each cause took. "
        "A part to the left of zero is a gain.",
        says=f"Lost percents. {says}.",
        data=data,
        layout=stack_layout("relative", names),
        height=stack_height(names),
    )


def accuracy(drawn: Sequence[Curve]) -> Figure:
    """Draw test accuracy against workers."""
    most = max(row.cell.size for curve in drawn for row in curve.rows)
    values = [100 * row.test_accuracy for curve in drawn for row in curve.with_baseline]
    low, high = min(values), max(values)
    room = max(1.0, 0.15 * (high - low))  # a flat curve should look flat
    return Figure(
        id="accuracy",
        title="Accuracy",
        about="Share of the test data guessed right: a strategy that keeps one worker's answer stays level.",
        says="Test accuracy over workers. " + _said(drawn, _accuracy, lambda v: f"{100 * v:.2f} percent"),
        data=_all_points(drawn, _accuracy, " %", 100),
        layout=layout(
            workers_axis([1, *_counts(drawn)], most * REACH),
            {"title": "test accuracy", "range": [low - room, min(100.5, high + room)], "ticksuffix": " %"},
        ),
    )


def _accuracy(row: Row) -> Interval:
    return Interval(value=row.test_accuracy, low=row.test_accuracy, high=row.test_accuracy)


def row_labels(record: SweepRecord, rows: Sequence[Row]) -> list[str]:
    """Name rows so that no two are called the same."""
    names = cell_names(row.cell for row in record.rows)
    return [names[row.cell.key] for row in rows]


def _all_points(
    drawn: Sequence[Curve], value: Callable[[Row], Interval | None], unit: str, factor: float = 1.0
) -> list[Trace]:
    """Draw the curves, a little beside each other, so that no interval hides another."""
    apart = min(0.015, 0.06 / max(1, len(drawn) - 1))
    middle = (len(drawn) - 1) / 2
    return [_points(curve, value, unit, factor, apart * (i - middle)) for i, curve in enumerate(drawn)]


def _points(curve: Curve, value: Callable[[Row], Interval | None], unit: str, factor: float, aside: float) -> Trace:
    """Draw one curve, hollow where ranks had to share cores."""
    rows = [(row, interval) for row in curve.with_baseline if (interval := value(row)) is not None]
    colour = engine_colour(curve.engine)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": safe(curve.name),
        "x": [row.cell.size * (1 + aside) if row.cell.size > 1 else 1 for row, _ in rows],
        "y": [factor * interval.value for _, interval in rows],
        "line": {"color": colour, "width": 2.5, "dash": DASHES[curve.style % len(DASHES)]},
        "marker": {
            "color": ["@panel" if row.oversubscribed else colour for row, _ in rows],
            "size": 9,
            "symbol": MARKERS[curve.style % len(MARKERS)],
            "line": {"color": colour, "width": 2},
        },
        "customdata": [[row.cell.size, in_brackets(with_coverage(interval, factor))] for row, interval in rows],
    }
    shown = f"%{{customdata[0]}} workers: %{{y:.4~g}}{unit}%{{customdata[1]}}"
    trace["hovertemplate"] = f"{trace['name']}, {shown}<extra></extra>"
    if any(interval.is_shown for _, interval in rows):
        below, above = reach((interval for _, interval in rows), factor)
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "color": colour,
            "thickness": 1.5,
            "width": 5,
        }
    return trace


def _counts(drawn: Sequence[Curve]) -> list[int]:
    return [row.cell.size for curve in drawn for row in curve.rows]


def _bars(drawn: Sequence[Curve]) -> str:
    """Say what the bars are; of rows that differ in their repeats, what holds for all."""
    known = [row.speed_up for curve in drawn for row in curve.rows if row.speed_up and has_width(row.speed_up)]
    if not known:
        return ""
    return f"bars are {coverage(min(known, key=lambda interval: interval.coverage_pct))} intervals, "


def _hollow(drawn: Sequence[Curve]) -> str:
    shared = any(row.oversubscribed for curve in drawn for row in curve.rows)
    return "; hollow points had more ranks than cores" if shared else ""


def _said(drawn: Sequence[Curve], value: Callable[[Row], Interval | None], words: Callable[[float], str]) -> str:
    told = []
    for curve in drawn:
        points = [f"{words(i.value)} with {row.cell.size}" for row in curve.rows if (i := value(row)) is not None]
        told.append(f"{curve.name}: {', '.join(points)}")
    return "; ".join(told) + "."
