"""One picture for each paper: its published figures, ours on every machine, and what is predicted."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from manyhands.record.papers import PaperFigure, ReproducedRow
from manyhands.report.document import Machines, picture_name
from manyhands.report.drawing import Axis, Figure, Item, Series, View, listed

COLOURS = ("mpi", "threads", "hybrid", "torch")
"""Of the machines, from the one with the fewest cores."""
NUMBERS = re.compile(r"\d+")
APART = 0.05
"""Distance between points of one number of workers, as a share of that number."""

Point = tuple[float, PaperFigure, ReproducedRow]


@final
@dataclass(frozen=True)
class Picture:
    """Which rows and which column of a paper are drawn."""

    table: str
    column: str
    x: str
    """Title of the axis of workers."""
    title: str
    only: str = ""
    """Beginning of the labels of the rows to draw; empty for all."""
    also: str = ""
    """Beginning of the labels of rows that are drawn as series of their own."""


PICTURES = {
    "000": Picture(
        *("figure 7", "speed-up", "nodes", "Paper 000: speed-up over one node, image size 3136"),
        only="MPI + OpenMP",
        also="OmpCluster",
    ),
    "001": Picture("table 4", "speed-up", "workers", "Paper 001: speed-up over the serial program"),
    "002": Picture("table 1", "speed-up", "processes", "Paper 002: strong scaling on 60,000 samples"),
    "003": Picture("table 2", "accuracy %", "processes", "Paper 003: test accuracy with batch 128 on each process"),
    "004": Picture("table 3", "improvement %", "nodes", "Paper 004: time saved by cutting the data, 10 folds a node"),
}


def paper_figure(machines: Machines, number: str) -> Figure:
    """Return the picture of a paper."""
    picture = PICTURES[number]
    rows = machines.rows(number, picture.table)
    items: list[Item] = []
    for prefix, is_other in ((picture.only, False), *(((picture.also, True),) if picture.also else ())):
        chosen = {labels: of for labels, of in rows.items() if labels[0].startswith(prefix)}
        items += _series(machines, chosen, picture.column, f", {prefix}" if picture.also else "", is_other=is_other)
    shown = [x for item in items if isinstance(item, Series) for x in item.x]
    ticks = sorted({round(x) for x in shown})
    view = View(
        items=items,
        x=Axis(title=picture.x, ticks=ticks, span=(0.6, max(ticks, default=1) + 0.5)),
        y=Axis(title=picture.column, from_zero=picture.column == "speed-up"),
    )
    names = [item.name for item in items if isinstance(item, Series)]
    return Figure(
        id=picture_name(number),
        title=picture.title,
        about="",
        alt=listed(picture.title, names),
        views=[view],
        picture=picture_name(number),
    )


def _series(
    machines: Machines,
    rows: Mapping[tuple[str, ...], Mapping[str, ReproducedRow]],
    column: str,
    name: str,
    *,
    is_other: bool,
) -> list[Series]:
    """Return the published figures, those of every machine, and the predicted ones, side by side."""
    first = [_point(labels, next(iter(of.values())), column) for labels, of in rows.items()]
    marker = "diamond" if is_other else "circle"
    drawn = [_published([point for point in first if point[1].published_low is not None], name)]
    for i, machine in enumerate(machines.names):
        points = [_point(labels, of[machine], column) for labels, of in rows.items() if machine in of]
        measured = [point for point in points if point[1].ours and not _says_nothing(point)]
        drawn.append(_measured(measured, f"{machine}{name}", COLOURS[i % len(COLOURS)], marker, 1 + i + 2 * is_other))
        predicted = [point for point in points if point[1].predicted]
        drawn.append(_predicted(predicted, f"predicted from {machine}{name}", COLOURS[i % len(COLOURS)], marker, 2 + i))
    return [series for series in drawn if series.x]


def _point(labels: tuple[str, ...], row: ReproducedRow, column: str) -> Point:
    return _workers(labels[-1]), next(figure for figure in row.figures if figure.column == column), row


def _workers(label: str) -> float:
    """Return the number of workers in a label: `4`, `4 threads`, `2 × 4` and `2×4 (8 total)`."""
    numbers = [int(text) for text in NUMBERS.findall(label.partition("(")[0])]
    return float(numbers[0] * (numbers[1] if "×" in label and len(numbers) > 1 else 1)) if numbers else 1.0


def _says_nothing(point: Point) -> bool:
    """Tell whether a point is of speed, but was measured with more workers than cores."""
    _, figure, row = point
    return row.oversubscribed and figure.kind in ("time", "speed-up", "improvement")


def _published(points: Sequence[Point], name: str) -> Series:
    middles = [((figure.published_low or 0) + (figure.published_high or 0)) / 2 for _, figure, _ in points]
    below = [middle - (figure.published_low or 0) for middle, (_, figure, _) in zip(middles, points, strict=True)]
    return Series(
        name=f"paper{name}",
        x=[x for x, _, _ in points],
        y=middles,
        colour="muted",
        marker="square",
        size=9,
        reach=(below, below),
        capped=True,
    )


def _measured(points: Sequence[Point], name: str, colour: str, marker: str, place: int) -> Series:
    figures = [figure.ours for _, figure, _ in points if figure.ours]
    return Series(
        name=name,
        x=_moved(points, place),
        y=[figure.value for figure in figures],
        colour=colour,
        marker=marker,
        size=10,
        reach=([figure.value - figure.low for figure in figures], [figure.high - figure.value for figure in figures]),
        capped=True,
    )


def _predicted(points: Sequence[Point], name: str, colour: str, marker: str, place: int) -> Series:
    figures = [figure.predicted for _, figure, _ in points if figure.predicted]
    return Series(
        name=name,
        x=_moved(points, place),
        y=[figure.value for figure in figures],
        colour=colour,
        marker=marker,
        size=10,
        hollow=True,
        reach=([figure.value - figure.low for figure in figures], [figure.high - figure.value for figure in figures]),
        capped=True,
    )


def _moved(points: Sequence[Point], place: int) -> list[float]:
    """Return the places along x, moved a little so that points of one number of workers do not hide each other."""
    return [x + APART * place for x, _, _ in points]
