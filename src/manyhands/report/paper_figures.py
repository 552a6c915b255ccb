"""One picture for each paper: its published figures, ours on every machine, and what is predicted."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from manyhands.record.papers import PaperFigure, PredictedFigure, ReproducedRow
from manyhands.record.sweep import Interval
from manyhands.report.document import Machines, picture_name
from manyhands.report.drawing import Axis, Figure, Item, Series, View, listed

COLOURS = ("mpi", "threads", "hybrid", "torch")
"""Of the groups of rows or, where there is one, of the machines, from the one with the fewest cores."""
MARKERS = ("circle", "diamond", "triangle-up")
"""Of the machines."""
NUMBERS = re.compile(r"\d+")
APART = 0.013
"""Distance between two series at one number of workers, as a share of the axis."""

Rows = Mapping[tuple[str, ...], Mapping[str, ReproducedRow]]
Point = tuple[float, PaperFigure]
"""A number of workers and a figure."""


@final
@dataclass(frozen=True)
class Picture:
    """Which rows and which column of a paper are drawn."""

    table: str
    column: str
    x: str
    """Title of the axis of workers."""
    title: str
    groups: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    """Rows that belong together: the name of each group, and a pattern for the first label of its rows."""


PICTURES = {
    "000": Picture(
        *("figure 7", "speed-up", "nodes", "Paper 000: speed-up over one node, image size 3136"),
        groups={"MPI + OpenMP": "MPI", "OmpCluster": "OmpCluster"},
    ),
    "001": Picture(
        *("table 4", "speed-up", "workers", "Paper 001: speed-up over the serial program"),
        groups={"MPI": "MPI", "OpenMP": "OpenMP", "Hybrid": "Hybrid"},
    ),
    "002": Picture("table 1", "speed-up", "processes", "Paper 002: strong scaling on 60,000 samples"),
    "003": Picture(
        *("table 2", "accuracy %", "processes", "Paper 003: test accuracy with batch 128 on each process"),
        groups={"rate × n": r"× \d$", "rate warmed up": "eased"},
    ),
    "004": Picture("table 3", "improvement %", "nodes", "Paper 004: time saved by cutting the data, 10 folds a node"),
}


def paper_figure(machines: Machines, number: str) -> Figure:
    """Return the picture of a paper."""
    picture = PICTURES[number]
    rows = machines.rows(number, picture.table)
    groups = {
        name: {labels: of for labels, of in rows.items() if re.search(pattern, labels[0])}
        for name, pattern in picture.groups.items()
    }
    series = [
        one
        for i, (name, chosen) in enumerate(groups.items())
        for one in _series(machines, chosen, picture.column, name, i)
    ]
    ticks = sorted({round(x) for one in series for x in one.x})
    items: list[Item] = [*_side_by_side([one for one in series if one.x], max(ticks, default=1))]
    view = View(
        items=items,
        x=Axis(title=picture.x, ticks=ticks, span=(0.5, max(ticks, default=1) + 0.5)),
        y=Axis(title=picture.column, from_zero=picture.column == "speed-up"),
    )
    return Figure(
        id=picture_name(number),
        title=picture.title,
        about="",
        alt=listed(picture.title, [one.name for one in series if one.x]),
        views=[view],
        picture=picture_name(number),
    )


def _series(machines: Machines, rows: Rows, column: str, group: str, index: int) -> list[Series]:
    """Return the published figures of a group of rows, those of every machine, and the predicted ones."""
    name = f", {group}" if group else ""
    first = [point for labels, of in rows.items() for point in _points(labels, next(iter(of.values())), column)]
    published = [(x, _published(figure)) for x, figure in first if figure.verdict != "baseline" and figure.published]
    drawn = [_drawn(f"paper{name}", published, COLOURS[index] if group else "muted", "square")]
    for i, machine in enumerate(machines.names):
        colour, marker = COLOURS[index if group else i], MARKERS[i % len(MARKERS)]
        measured, predicted = list[tuple[float, Interval]](), list[tuple[float, PredictedFigure]]()
        for row, labels in ((of[machine], labels) for labels, of in rows.items() if machine in of):
            for x, figure in _points(labels, row, column):
                if figure.ours and not (row.oversubscribed and figure.kind in ("time", "speed-up", "improvement")):
                    measured.append((x, figure.ours))
                if figure.predicted:
                    predicted.append((x, figure.predicted))
        drawn.append(_drawn(f"{machine}{name}", measured, colour, marker))
        drawn.append(_drawn(f"predicted from {machine}{name}", predicted, colour, marker, hollow=True))
    return drawn


def _points(labels: tuple[str, ...], row: ReproducedRow, column: str) -> list[Point]:
    workers = num_workers(labels[-1])
    return [(workers, figure) for figure in row.figures if figure.column == column and workers]


def num_workers(label: str) -> float:
    """Return the number of workers in a label: `4`, `4 threads`, `2 × 4` and `2×4 (8 total)`; 0 where there is none."""
    numbers = [int(text) for text in NUMBERS.findall(label.partition("(")[0])]
    return float(numbers[0] * (numbers[1] if "×" in label and len(numbers) > 1 else 1)) if numbers else 0.0


def _published(figure: PaperFigure) -> Interval:
    low, high = figure.published_low or 0.0, figure.published_high or 0.0
    middle = (low + high) / 2
    return Interval(value=middle, low=low, high=high)


def _drawn(
    name: str,
    points: Sequence[tuple[float, Interval]] | Sequence[tuple[float, PredictedFigure]],
    colour: str,
    marker: str,
    *,
    hollow: bool = False,
) -> Series:
    below = [figure.value - figure.low for _, figure in points]
    above = [figure.high - figure.value for _, figure in points]
    return Series(
        name=name,
        x=[x for x, _ in points],
        y=[figure.value for _, figure in points],
        colour=colour,
        marker=marker,
        size=10,
        hollow=hollow,
        reach=(below, above) if any(length > 0 for length in (*below, *above)) else None,
        capped=True,
    )


def _side_by_side(series: Sequence[Series], most: float) -> list[Series]:
    """Move series a little along x, so that points of one number of workers do not hide each other."""
    middle = (len(series) - 1) / 2
    return [replace(one, x=[x + APART * most * (i - middle) for x in one.x]) for i, one in enumerate(series)]
