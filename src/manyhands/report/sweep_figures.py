"""The figures of a sweep: speed-up, efficiency, weak scaling, time split, lost percents, accuracy."""

from collections.abc import Callable, Sequence
from typing import get_args

from manyhands.record.labels import cell_names, least_coverage, with_coverage
from manyhands.record.sweep import Cause, Fit, Interval, PredictedRow, Row, SweepRecord
from manyhands.record.texts import in_brackets, milliseconds
from manyhands.report.curves import Curve, curves, fitted_speed_up
from manyhands.report.drawing import Axis, Figure, Series, View, dashed, listed
from manyhands.report.palette import DASHES, MARKERS, engine_colour
from manyhands.report.stacks import parts_ms, split_figure, stack_view, stacked
from manyhands.report.tables.sweeps import LAWS

REACH = 1.25
"""Ratio of the end of the axis, to which fitted laws are drawn, to the most workers."""
FEW = 8
"""Most workers that are shown on a linear axis."""

Value = Callable[[Row], Interval | None]


def sweep_figures(record: SweepRecord) -> dict[str, list[Figure]]:
    """Return the figures that the record has data for, by the section of the page."""
    foretold = [curve for curve in curves(record) if curve.rows or curve.predicted]
    drawn = [curve for curve in foretold if curve.rows]
    has_speed_up = any(row.speed_up for curve in drawn for row in curve.rows)
    return {
        "scaling": [
            *([_speed_up(record, foretold), _efficiency(foretold)] if has_speed_up else []),
            *([_weak(drawn)] if record.kind == "weak" and drawn else []),
        ],
        "why": [
            *([_lost(record)] if any(finding.parts for finding in record.findings) else []),
            *([_split(record)] if any(row.repeats for row in record.rows) else []),
        ],
        "learning": _accuracy(drawn),
    }


def _speed_up(record: SweepRecord, drawn: Sequence[Curve]) -> Figure:
    """Draw speed-up against workers, beside the ideal, with intervals; one view for each fitted law."""
    most = _most(drawn)
    fits = [(fit, curve) for curve in drawn for fit in curve.fits if fit.describes]
    laws = [law for law in reversed(LAWS) if any(fit.law == law for fit, _ in fits)]
    ideal = dashed("ideal", [1, most * REACH], [1, most * REACH])
    foretold = _predicted(drawn, lambda row: row.speed_up, "×")
    measured = [ideal, *_all_points(drawn, lambda row: row.speed_up, "×"), *foretold]
    fitted = {law: [_fitted(fit, curve, most) for fit, curve in fits if fit.law == law] for law in laws}
    highest = max([1.0, *(row.speed_up.high for curve in drawn for row in curve.rows if row.speed_up)])
    highest = max([highest, *(row.speed_up.high for curve in drawn for row in curve.predicted)])
    title = "speed-up over one worker"
    x = _workers(drawn)
    y = Axis(title=title, span=(0, 1.06 * max(most, highest)))
    if most > FEW:
        y = Axis(title=title, log=True, ticks=[2.0**power for power in range(-4, 13)])
    least = least_coverage(row.speed_up for curve in drawn for row in curve.rows)
    bars = f"bars are {least} intervals, " if least else ""
    kind = "Samples per second against those of one worker" if record.kind == "weak" else "How many times as fast"
    return Figure(
        id="speed-up",
        title="Speed-up",
        about=f"{kind}; {bars}the dashed line is the ideal{_without_servers(drawn)}"
        f"{', dotted lines are the law fitted' if fits else ''}{_hollow(drawn)}{_foretold(drawn)}.",
        alt=_listed("Speed-up over workers", drawn, lambda row: row.speed_up, lambda v: f"{v:.2f} times"),
        views=[
            *(View(label=LAWS[law], items=[*measured, *fitted[law]], x=x, y=y) for law in laws),
            View(label="none" if laws else "", items=measured, x=x, y=y),
        ],
        choose="Fitted law",
        picture="speed-up",
    )


def _fitted(fit: Fit, curve: Curve, most: int) -> Series:
    xs = [round(1 + i * (most * REACH - 1) / 60, 4) for i in range(61)]
    ys = [round(fitted_speed_up(fit, n), 5) for n in xs]
    name = f"{curve.name}, {LAWS[fit.law]}"
    return Series(
        name=name,
        x=xs,
        y=ys,
        colour=engine_colour(curve.engine),
        width=1.5,
        dash="dot",
        hover=[f"{name}: {y:.2f}×" for y in ys],
        in_legend=False,
        groups=[curve.name],
    )


def _efficiency(drawn: Sequence[Curve]) -> Figure:
    top = max([1.0, *(row.efficiency.high for curve in drawn for row in curve.rows if row.efficiency)])
    ideal = dashed("ideal", [1, _most(drawn) * REACH], [100, 100])
    items = [ideal, *_all_points(drawn, lambda row: row.efficiency, " %", 100)]
    items += _predicted(drawn, lambda row: row.efficiency, " %", 100)
    return Figure(
        id="efficiency",
        title="Efficiency",
        about="Speed-up as a share of the ranks, of which each occupies a core: workers, and servers where there are "
        "some. 100 % is the ideal, what is missing is lost"
        f"{_hollow(drawn)}{_foretold(drawn)}.",
        alt=_listed("Efficiency over workers", drawn, lambda row: row.efficiency, lambda v: f"{100 * v:.0f} percent"),
        views=[View(items=items, x=_workers(drawn), y=Axis(title="efficiency", span=(0, 108 * top), unit=" %"))],
        picture="efficiency",
    )


def _weak(drawn: Sequence[Curve]) -> Figure:
    """Draw the time of a step against workers with a constant batch each."""
    alone = [c.baseline.step_ms.value for c in drawn if c.baseline and c.baseline.step_ms]
    ideal = [dashed("ideal", [1, _most(drawn) * REACH], [alone[0], alone[0]])] if len(set(alone)) == 1 else []
    items = [*ideal, *_all_points(drawn, lambda row: row.step_ms, " ms")]
    return Figure(
        id="weak",
        title="Weak scaling",
        about=f"Time of a step while every worker keeps a batch of its own: the ideal stays flat{_hollow(drawn)}.",
        alt=_listed("Time per step over workers", drawn, lambda row: row.step_ms, milliseconds),
        views=[View(items=items, x=_workers(drawn), y=Axis(title="time per step", from_zero=True, unit=" ms"))],
        picture="weak",
    )


def _split(record: SweepRecord) -> Figure:
    rows = [row for row in record.rows if row.repeats]
    return split_figure(
        "split",
        "Where a step's time goes",
        "Compute is shared out over the workers; serial is what every worker repeats; comm is what the exchanges took; "
        "wait is time spent waiting for the slowest worker.",
        list(zip(row_labels(record, rows), map(parts_ms, rows), strict=True)),
        picture="split",
    )


CAUSES = {
    "comm": "communication",
    "wait": "waiting",
    "slow-rank": "a slow rank",
    "straggler": "stragglers",
    "uneven": "uneven shares",
    "others": "other programs",
    "data": "gathering data",
    "serial": "serial work",
    "small-batch": "small batches",
    "oversubscription": "oversubscription",
    "memory": "sharing the machine",
    "unclear": "small batches or sharing the machine",
    "servers": "servers, which compute nothing",
    "unattributed": "not attributed",
}
"""Causes of lost time in words."""


def _lost(record: SweepRecord) -> Figure:
    """Draw the ranks' time: work done, and the share lost to each cause."""
    findings = {finding.row: finding for finding in record.findings if finding.parts}
    rows = [row for row in record.rows if row.cell.key in findings and row.efficiency]
    names = row_labels(record, rows)
    done = [round(100 * row.efficiency.value, 3) for row in rows if row.efficiency]
    parts = [stacked("work done", "work", names, done)]
    for cause in get_args(Cause):
        values = [sum(p.percent for p in findings[row.cell.key].parts if p.cause == cause) for row in rows]
        if any(abs(value) >= 0.05 for value in values):
            parts.append(stacked(CAUSES[cause], cause, names, [round(value, 3) for value in values]))
    said = [
        f"{name}: " + ", ".join(f"{part.name} {part.lengths[i]:.0f} percent" for part in parts if part.lengths[i])
        for i, name in enumerate(names)
    ]
    return Figure(
        id="lost",
        title="Where the lost percents went",
        about="All that the ranks could do at best is 100 %: what they did, and what each cause took. "
        "A part to the left of zero is a gain.",
        alt=listed("Lost percents", said),
        views=[stack_view(parts, names, Axis(unit=" %"))],
    )


def _accuracy(drawn: Sequence[Curve]) -> list[Figure]:
    """Draw the accuracy over the workers; nothing for a task without one."""

    def accuracy(row: Row) -> Interval | None:
        share = row.test_accuracy
        return None if share is None else Interval(value=share, low=share, high=share)

    shares = [row.test_accuracy for curve in drawn for row in curve.with_baseline]
    values = [100 * share for share in shares if share is not None]
    if not values:
        return []
    low, high = min(values), max(values)
    room = max(1.0, 0.15 * (high - low))  # a flat curve should look flat
    y = Axis(title="test accuracy", span=(low - room, min(100.5, high + room)), unit=" %")
    accuracies = Figure(
        id="accuracy",
        title="Accuracy",
        about="Share of the test data guessed right: a strategy that keeps one worker's answer stays level.",
        alt=_listed("Test accuracy over workers", drawn, accuracy, lambda v: f"{100 * v:.2f} percent"),
        views=[View(items=_all_points(drawn, accuracy, " %", 100), x=_workers(drawn), y=y)],
    )
    return [accuracies]


def row_labels(record: SweepRecord, rows: Sequence[Row]) -> list[str]:
    """Return a name for each row that no other row of the record has."""
    names = cell_names(row.cell for row in record.rows)
    return [names[row.cell.key] for row in rows]


def _all_points(drawn: Sequence[Curve], value: Value, unit: str, factor: float = 1.0) -> list[Series]:
    """Draw the curves, shifted a little along x, so that no interval hides another."""
    apart = min(0.015, 0.06 / max(1, len(drawn) - 1))
    middle = (len(drawn) - 1) / 2
    return [_points(curve, value, unit, factor, apart * (i - middle)) for i, curve in enumerate(drawn)]


def _points(curve: Curve, value: Value, unit: str, factor: float, shift: float) -> Series:
    """Draw one curve, hollow where ranks had to share cores."""
    rows = [(row, interval) for row in curve.with_baseline if (interval := value(row)) is not None]
    below = [max(0.0, factor * (i.value - i.low)) * i.is_shown for _, i in rows]
    above = [max(0.0, factor * (i.high - i.value)) * i.is_shown for _, i in rows]
    return Series(
        name=curve.name,
        x=[row.cell.size * (1 + shift) if row.cell.size > 1 else 1 for row, _ in rows],
        y=[factor * interval.value for _, interval in rows],
        colour=engine_colour(curve.engine),
        width=2.5,
        dash=DASHES[curve.style % len(DASHES)],
        marker=MARKERS[curve.style % len(MARKERS)],
        size=9,
        hollow=[row.oversubscribed for row, _ in rows],
        reach=(below, above) if any(i.is_shown for _, i in rows) else None,
        capped=True,
        hover=[
            f"{curve.name}, {row.cell.size} workers: {factor * interval.value:.4g}{unit}"
            f"{in_brackets(with_coverage(interval, factor))}"
            for row, interval in rows
        ],
    )


def _predicted(
    drawn: Sequence[Curve], value: Callable[[PredictedRow], Interval], unit: str, factor: float = 1.0
) -> list[Series]:
    """Draw the predictions of the curves: dashed, hollow, and with names of their own."""
    return [_predicted_points(curve, value, unit, factor) for curve in drawn if curve.predicted]


def _predicted_points(curve: Curve, value: Callable[[PredictedRow], Interval], unit: str, factor: float) -> Series:
    intervals, name = [value(row) for row in curve.predicted], f"{curve.name}, predicted"
    reach = ([factor * (i.value - i.low) for i in intervals], [factor * (i.high - i.value) for i in intervals])
    sizes = [row.cell.size for row in curve.predicted]
    return Series(
        name=name,
        x=sizes,
        y=[factor * interval.value for interval in intervals],
        colour=engine_colour(curve.engine),
        width=1.5,
        dash="dash",
        marker="cross",
        size=9,
        hollow=True,
        reach=reach,
        capped=True,
        hover=[
            f"{name}, not measured, {size} workers: {factor * interval.value:.4g}{unit}"
            f"{in_brackets(with_coverage(interval, factor))}"
            for size, interval in zip(sizes, intervals, strict=True)
        ],
    )


def _foretold(drawn: Sequence[Curve]) -> str:
    return "; dashed crosses are predicted, not measured" if any(curve.predicted for curve in drawn) else ""


def _sizes(drawn: Sequence[Curve]) -> set[int]:
    """Return the numbers of workers of the curves, predicted ones included."""
    measured = {row.cell.size for curve in drawn for row in curve.rows}
    return measured | {row.cell.size for curve in drawn for row in curve.predicted}


def _workers(drawn: Sequence[Curve]) -> Axis:
    ticks = sorted({1, *_sizes(drawn)})
    if ticks[-1] > FEW:
        return Axis(title="workers", log=True, ticks=ticks)
    return Axis(title="workers", ticks=ticks, span=(0.8, ticks[-1] * REACH))


def _most(drawn: Sequence[Curve]) -> int:
    return max(_sizes(drawn))


def _without_servers(drawn: Sequence[Curve]) -> str:
    has_servers = any(row.ranks > row.cell.size for curve in drawn for row in curve.rows)
    return " of the workers, without the cores of servers" if has_servers else ""


def _hollow(drawn: Sequence[Curve]) -> str:
    shared = any(row.oversubscribed for curve in drawn for row in curve.rows)
    return "; hollow points had more ranks than cores" if shared else ""


def _listed(title: str, drawn: Sequence[Curve], value: Value, text: Callable[[float], str]) -> str:
    texts = []
    for curve in drawn:
        points = [f"{text(i.value)} with {row.cell.size}" for row in curve.rows if (i := value(row)) is not None]
        texts += [f"{curve.name}: {', '.join(points)}"] if points else []
    return listed(title, texts)
