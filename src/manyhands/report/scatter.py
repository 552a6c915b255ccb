"""Figures of validations: predicted against measured, and the errors by workers, strategy or task."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from manyhands.record.simulation import Validation
from manyhands.record.texts import count, duration, plus_minus, with_bounds
from manyhands.report.drawing import Axis, Figure, Item, Series, Shade, View, dashed, decades_axis
from manyhands.report.palette import MARKERS, engine_colour, series_colour
from manyhands.report.scores import ERROR_PCT, Name, PredictionScore, counted, grouped, score
from manyhands.report.words import task_name

HEIGHT = 440
RING = 17
"""Diameter of what is drawn around a point whose interval was missed."""
WIDE = 0.8
"""Share of a column over which its points are spread."""
SHARED = "more ranks than cores"
MISSED = "interval missed"


@dataclass(frozen=True)
class Looks:
    """The colour and shape that a row has in all figures."""

    colour_of: Name
    colours: Mapping[str, str]
    shapes: Mapping[str, str]

    def colour(self, row: Validation) -> str:
        """Return the name of its colour."""
        return self.colours[self.colour_of(row)]

    def shape(self, row: Validation) -> str:
        """Return the marker of the row's task."""
        return self.shapes[task_name(row.task)]

    def kind(self, row: Validation) -> tuple[str, str, bool]:
        """Return what rows have in common that are drawn together."""
        return self.colour_of(row), task_name(row.task), row.oversubscribed


def looks(rows: Sequence[Validation]) -> dict[str, Looks]:
    """Return the ways to colour rows: by engine and by strategy; their shapes tell tasks apart."""
    shapes = {task: MARKERS[i % len(MARKERS)] for i, task in enumerate(grouped(rows, lambda row: task_name(row.task)))}
    engines, syncs = grouped(rows, lambda row: row.engine), grouped(rows, lambda row: row.sync)
    return {
        "engine": Looks(lambda row: row.engine, {each: engine_colour(each) for each in engines}, shapes),
        "strategy": Looks(lambda row: row.sync, {each: series_colour(i) for i, each in enumerate(syncs)}, shapes),
    }


def row_name(row: Validation) -> str:
    """Name a row: `mlp, mpi ×2, allreduce`, `mlp, mpi ×4 on 2 hosts, allreduce`."""
    where = f" on {count(row.hosts, 'host')}" if row.hosts > 1 else ""
    return f"{task_name(row.task)}, {row.engine} ×{row.workers}{where}, {row.sync}"


def validation_figures(rows: Sequence[Validation]) -> list[Figure]:
    """Return all figures of validations, of which there may be none."""
    return [scatter(rows), errors(rows)] if rows else []


def scatter(rows: Sequence[Validation]) -> Figure:
    """Draw predicted against measured step times, on and around the diagonal."""
    ends = span_ms(rows)
    axis = decades_axis("", ends)
    x, y = replace(axis, title="measured step (ms)"), replace(axis, title="predicted step (ms)")
    line = dashed("as predicted", ends, ends)
    return Figure(
        id="predicted",
        title="Predicted against measured",
        about="Step time of each configuration: on the dashed line the prediction is right, above it too slow, below "
        f"it too fast. Bars are the predictions' 90 % intervals{_about_marks(rows)}.",
        says=f"Predicted against measured step times. {_said(rows)}",
        views=[
            View(label=name, items=[line, *_points(rows, look)], x=x, y=y, height=HEIGHT)
            for name, look in looks(rows).items()
        ],
        choose="Colour",
        picture="predicted",
    )


def span_ms(rows: Iterable[Validation]) -> tuple[float, float]:
    """Return the least and the greatest of the times, measured and predicted."""
    values = [ms for row in rows for ms in (row.median_ms, row.predicted_ms.value, row.predicted_ms.high)]
    good = [ms for ms in values if math.isfinite(ms) and ms > 0] or [1.0]
    return min(good), max(good)


def _points(rows: Sequence[Validation], look: Looks) -> list[Series]:
    """Draw rows by colour and shape, ringed where the interval was missed; the legend's entries come first."""
    found = _keys(rows, look)
    for own in grouped(rows, look.kind).values():
        xs, ys = [row.median_ms for row in own], [row.predicted_ms.value for row in own]
        below = [row.predicted_ms.value - row.predicted_ms.low for row in own]
        above = [row.predicted_ms.high - row.predicted_ms.value for row in own]
        found += _drawn(own, look, xs, ys, (below, above))
    return found


def _drawn(
    own: Sequence[Validation],
    look: Looks,
    xs: list[float],
    ys: list[float],
    reach: tuple[list[float], list[float]],
) -> list[Series]:
    """Draw rows of one kind, and the rings around some of them."""
    colour, shared = look.colour(own[0]), own[0].oversubscribed
    below, above = ([max(0.0, each) for each in side] for side in reach)
    points = Series(
        name=", ".join(look.kind(own[0])[:2]),
        x=xs,
        y=ys,
        colour=colour,
        marker=look.shape(own[0]),
        hollow=shared,
        reach=(below, above),
        told=[_told(row) for row in own],
        in_legend=False,
        groups=[f"colour {look.colour_of(own[0])}", f"task {task_name(own[0].task)}", *([SHARED] if shared else [])],
    )
    missed = [i for i, row in enumerate(own) if not row.held]
    ring = Series(
        name=MISSED,
        x=[xs[i] for i in missed],
        y=[ys[i] for i in missed],
        colour="bad",
        marker="ring",
        size=RING,
        in_legend=False,
        groups=[*points.groups, MISSED],
    )
    return [points, *([ring] if missed else [])]


def _keys(rows: Sequence[Validation], look: Looks) -> list[Series]:
    """Return the legend: colours, shapes where there are several, and marks."""
    found = [
        Series(name=name, colour=colour, marker="circle", groups=[f"colour {name}"])
        for name, colour in look.colours.items()
    ]
    for task, shape in look.shapes.items() if len(look.shapes) > 1 else ():
        found.append(Series(name=task, colour="muted", marker=shape, groups=[f"task {task}"]))
    if any(row.oversubscribed for row in rows):
        found.append(Series(name=SHARED, colour="muted", marker="circle", hollow=True))
    if not all(row.held for row in rows):
        found.append(Series(name=MISSED, colour="bad", marker="ring"))
    return found


def _told(row: Validation) -> str:
    return (
        f"{row_name(row)}\npredicted {with_bounds(row.predicted_ms, lambda ms: duration(ms / 1e3))}\n"
        f"measured {duration(row.median_ms / 1e3)} (noise {plus_minus(row.noise_pct)})\n"
        f"error {row.error_pct:+.1f} %, {'interval held' if row.held else MISSED}"
    )


def _about_marks(rows: Sequence[Validation]) -> str:
    ringed = "; ringed points lie outside theirs" if not all(row.held for row in rows) else ""
    hollow = "; hollow points had more ranks than cores and are not counted"
    return ringed + (hollow if len(counted(rows)) < len(rows) else "")


def _said(rows: Sequence[Validation]) -> str:
    told = []
    for engine, own in grouped(rows, lambda row: row.engine).items():
        found = score(own)
        told.append(f"{engine}: {count(len(own), 'configuration')}, {_score_said(found) if found else SHARED}")
    return "; ".join(told) + "."


def _score_said(found: PredictionScore) -> str:
    return f"median error {found.error_pct:.1f} percent, {found.held} of {found.cases} intervals held"


def errors(rows: Sequence[Validation]) -> Figure:
    """Draw the errors side by side, with the intervals: those that held reach over the line of no error."""
    columns: dict[str, Callable[[Validation], str | int]] = {
        "workers": lambda row: row.workers,
        "strategy": lambda row: row.sync,
        "task": lambda row: task_name(row.task),
        "engine": lambda row: row.engine,
        "hosts": lambda row: row.hosts,
    }
    several = {name: column for name, column in columns.items() if len(grouped(rows, column)) > 1}
    chosen = several or {"workers": columns["workers"]}
    shown = error_span(rows)
    outside = sum(not shown[0] <= row.error_pct <= shown[1] for row in rows)
    further = f" {count(outside, 'point')} further out: double-click to see all." if outside else ""
    return Figure(
        id="errors",
        title="Errors",
        about="By how much each prediction is above what was measured; below 0 it is too fast. The grey band is the "
        f"aim for the median, ±{aim_pct(rows):.1f} %; a bar that reaches over 0 is an interval that held.{further}",
        says=f"Errors of the predictions. {_said(rows)}",
        views=[_errors_by(rows, looks(rows)["engine"], name, column) for name, column in chosen.items()],
        choose="By",
        picture="errors",
    )


def error_span(rows: Sequence[Validation]) -> tuple[float, float]:
    """Return what is shown of errors and intervals: all that count, or all where none does."""
    telling = counted(rows) or list(rows)
    values = [0.0, ERROR_PCT, -ERROR_PCT]
    values += [value for row in telling for value in (row.error_pct, *bounds_pct(row)) if math.isfinite(value)]
    room = 0.05 * (max(values) - min(values))
    return min(values) - room, max(values) + room


def bounds_pct(row: Validation) -> tuple[float, float]:
    """Return the bounds of a prediction as errors against what was measured."""
    bounds = row.predicted_ms
    return 100 * (bounds.low / row.median_ms - 1), 100 * (bounds.high / row.median_ms - 1)


def aim_pct(rows: Sequence[Validation]) -> float:
    """Return the median error that is aimed at."""
    found = score(rows)
    return found.aim_pct if found else ERROR_PCT


def _errors_by(rows: Sequence[Validation], look: Looks, label: str, column: Callable[[Validation], str | int]) -> View:
    """Draw the errors in columns, within which those of one colour stand together, the lowest first."""
    names = list(grouped(rows, column))
    names = sorted(names) if label in ("workers", "hosts") else names
    at: dict[int, float] = {}
    for place, name in enumerate(names):
        own = [i for i, row in enumerate(rows) if column(row) == name]
        own.sort(key=lambda i: (look.colour(rows[i]), rows[i].oversubscribed, rows[i].error_pct))
        at |= {i: place + WIDE * ((order + 0.5) / len(own) - 0.5) for order, i in enumerate(own)}
    items: list[Item] = [Shade(-aim_pct(rows), aim_pct(rows)), *_keys(rows, look)]
    for some in grouped(range(len(rows)), lambda i: look.kind(rows[i])).values():
        alike = [rows[i] for i in some]
        ys = [row.error_pct for row in alike]
        below = [row.error_pct - bounds_pct(row)[0] for row in alike]
        above = [bounds_pct(row)[1] - row.error_pct for row in alike]
        items += _drawn(alike, look, [round(at[i], 4) for i in some], ys, (below, above))
    places = [str(name).replace(":", ":\n") for name in names]
    return View(
        label=label,
        items=items,
        x=Axis(title=label, ticks=range(len(names)), names=places, span=(-0.5, len(names) - 0.5)),
        y=Axis(title="error of the prediction", span=error_span(rows), unit=" %", zero_line=True),
        height=HEIGHT,
    )
