"""Figures of validations: predicted against measured, and the errors by workers, strategy or task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from manyhands.record.simulation import Validation
from manyhands.record.texts import count, milliseconds, plus_minus, with_bounds
from manyhands.report.drawing import Axis, Figure, Series, Shade, View, dashed, decades_axis, listed, positive_span
from manyhands.report.palette import MARKERS, engine_colour, series_colour
from manyhands.report.scores import ERROR_PCT, Name, counted, grouped, score
from manyhands.report.words import task_name

HEIGHT = 440
RING = 17
"""Diameter of the ring around a point outside its interval."""
WIDE = 0.8
"""Share of a column over which its points are spread."""
SHARED = "more ranks than cores"
MISSED = "interval missed"

Place = Callable[[Validation], tuple[float, float, float, float]]
"""Returns x and y of a row, and the lower and upper end of its error bar."""
COLOURED_BY: dict[str, Name] = {"engine": lambda row: row.engine, "strategy": lambda row: row.sync}
"""What the colours of points may stand for; their shapes stand for tasks."""


def row_name(row: Validation) -> str:
    """Return a row's name: `mlp, mpi ×2, allreduce`, `mlp, mpi ×4 on 2 hosts, allreduce`."""
    where = f" on {count(row.hosts, 'host')}" if row.hosts > 1 else ""
    return f"{task_name(row.task)}, {row.engine} ×{row.workers}{where}, {row.sync}"


def scatter(rows: Sequence[Validation]) -> Figure:
    """Draw predicted against measured step times, on and around the diagonal."""
    times = [ms for row in rows for ms in (row.median_ms, row.predicted_ms.value, row.predicted_ms.high)]
    ends = positive_span(times)
    axis = decades_axis("", ends)
    x, y = replace(axis, title="measured step (ms)"), replace(axis, title="predicted step (ms)")
    diagonal = dashed("as predicted", ends, ends)
    ringed = "; ringed points lie outside theirs" if not all(row.holds_median for row in rows) else ""
    hollow = "; hollow points had more ranks than cores and are not counted" if len(counted(rows)) < len(rows) else ""

    def place(row: Validation) -> tuple[float, float, float, float]:
        return row.median_ms, row.predicted_ms.value, row.predicted_ms.low, row.predicted_ms.high

    return Figure(
        id="predicted",
        title="Predicted against measured",
        about="Step time of each configuration: on the dashed line the prediction is right, above it too slow, below "
        f"it too fast. Bars are the predictions' 90 % intervals{ringed}{hollow}.",
        alt=_listed("Predicted against measured step times", rows),
        views=[
            View(label=by, items=[diagonal, *_points(rows, by, place)], x=x, y=y, height=HEIGHT) for by in COLOURED_BY
        ],
        choose="Colour",
        picture="predicted",
    )


def _points(rows: Sequence[Validation], by: str, place: Place) -> list[Series]:
    """Draw rows by colour and shape, ringed where the interval was missed; the legend's entries come first."""
    name_of = COLOURED_BY[by]
    names, tasks = grouped(rows, name_of), grouped(rows, lambda row: task_name(row.task))
    colours = {name: engine_colour(name) if by == "engine" else series_colour(i) for i, name in enumerate(names)}
    shapes = {task: MARKERS[i % len(MARKERS)] for i, task in enumerate(tasks)}
    items = _legend(rows, colours, shapes)
    kinds = grouped(rows, lambda row: (name_of(row), task_name(row.task), row.oversubscribed))
    for (name, task, shared), alike in kinds.items():
        xs, ys, lows, highs = zip(*map(place, alike), strict=True)
        points = Series(
            name=f"{name}, {task}",
            x=xs,
            y=ys,
            colour=colours[name],
            marker=shapes[task],
            hollow=shared,
            reach=(
                [max(0.0, y - low) for y, low in zip(ys, lows, strict=True)],
                [max(0.0, high - y) for y, high in zip(ys, highs, strict=True)],
            ),
            hover=[_hover(row) for row in alike],
            in_legend=False,
            groups=[f"colour {name}", f"task {task}", *([SHARED] if shared else [])],
        )
        missed = [i for i, row in enumerate(alike) if not row.holds_median]
        rings = Series(
            name=MISSED,
            x=[xs[i] for i in missed],
            y=[ys[i] for i in missed],
            colour="bad",
            marker="ring",
            size=RING,
            in_legend=False,
            groups=[*points.groups, MISSED],
        )
        items += [points, rings] if missed else [points]
    return items


def _legend(rows: Sequence[Validation], colours: Mapping[str, str], shapes: Mapping[str, str]) -> list[Series]:
    """Return the legend's entries: colours, shapes where there are several, and marks."""
    entries = [
        Series(name=name, colour=colour, marker="circle", groups=[f"colour {name}"]) for name, colour in colours.items()
    ]
    for task, shape in shapes.items() if len(shapes) > 1 else ():
        entries.append(Series(name=task, colour="muted", marker=shape, groups=[f"task {task}"]))
    if any(row.oversubscribed for row in rows):
        entries.append(Series(name=SHARED, colour="muted", marker="circle", hollow=True))
    if not all(row.holds_median for row in rows):
        entries.append(Series(name=MISSED, colour="bad", marker="ring"))
    return entries


def _hover(row: Validation) -> str:
    return (
        f"{row_name(row)}\npredicted {with_bounds(row.predicted_ms, milliseconds)}\n"
        f"measured {milliseconds(row.median_ms)} (noise {plus_minus(row.noise_pct)})\n"
        f"error {row.error_pct:+.1f} %, {row.held} of {count(len(row.measured_ms), 'run')} within the interval"
    )


def _listed(title: str, rows: Sequence[Validation]) -> str:
    """Return an alternative text with the score of each engine."""
    texts = []
    for engine, alike in grouped(rows, lambda row: row.engine).items():
        judged, text = score(alike), SHARED
        if judged:
            held = f"{judged.held} of {judged.runs} runs within their intervals"
            text = f"median error {judged.error_pct:.1f} percent, {held}"
        texts.append(f"{engine}: {count(len(alike), 'configuration')}, {text}")
    return listed(title, texts)


def errors(rows: Sequence[Validation]) -> Figure:
    """Draw the errors side by side, with the intervals: those that held reach across the line of no error."""
    columns: dict[str, Callable[[Validation], str | int]] = {
        "workers": lambda row: row.workers,
        "strategy": lambda row: row.sync,
        "task": lambda row: task_name(row.task),
        "engine": lambda row: row.engine,
        "hosts": lambda row: row.hosts,
    }
    several = {name: column for name, column in columns.items() if len(grouped(rows, column)) > 1}
    chosen = several or {"workers": columns["workers"]}
    judged = score(rows)
    aim = judged.aim_pct if judged else ERROR_PCT
    values = [0.0, ERROR_PCT, -ERROR_PCT]
    for row in counted(rows) or rows:
        values += [value for value in (row.error_pct, *_bounds_pct(row)) if isfinite(value)]
    room = 0.05 * (max(values) - min(values))
    low, high = min(values) - room, max(values) + room
    y = Axis(title="error of the prediction", span=(low, high), unit=" %", zero_line=True)
    outside = sum(not low <= row.error_pct <= high for row in rows)
    further = f" {count(outside, 'point')} further out: double-click to see all." if outside else ""
    return Figure(
        id="errors",
        title="Errors",
        about="By how much each prediction is above what was measured; below 0 it is too fast. The grey band is the "
        f"aim for the median, ±{aim:.1f} %; a bar that reaches over 0 holds the median of its runs.{further}",
        alt=_listed("Errors of the predictions", rows),
        views=[_errors_by(rows, aim, y, name, column) for name, column in chosen.items()],
        choose="By",
        picture="errors",
    )


def _bounds_pct(row: Validation) -> tuple[float, float]:
    """Return the bounds of a prediction as errors against the measured time."""
    bounds = row.predicted_ms
    return 100 * (bounds.low / row.median_ms - 1), 100 * (bounds.high / row.median_ms - 1)


def _errors_by(
    rows: Sequence[Validation], aim: float, y: Axis, label: str, column: Callable[[Validation], str | int]
) -> View:
    """Draw the errors in columns, within which those of one colour stand together, the lowest first."""
    columns = grouped(rows, column)
    names = sorted(columns) if label in ("workers", "hosts") else list(columns)
    xs: dict[int, float] = {}
    for middle, name in enumerate(names):
        ordered = sorted(columns[name], key=lambda row: (engine_colour(row.engine), row.oversubscribed, row.error_pct))
        for i, row in enumerate(ordered):
            xs[id(row)] = round(middle + WIDE * ((i + 0.5) / len(ordered) - 0.5), 4)
    places = [str(name).replace(":", ":\n") for name in names]
    return View(
        label=label,
        items=[Shade(-aim, aim), *_points(rows, "engine", lambda row: (xs[id(row)], row.error_pct, *_bounds_pct(row)))],
        x=Axis(title=label, ticks=range(len(names)), names=places, span=(-0.5, len(names) - 0.5)),
        y=y,
        height=HEIGHT,
    )
