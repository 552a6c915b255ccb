"""Figures of horizontal stacks: one bar a row, cut into parts."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from manyhands.record.run import Steady
from manyhands.record.simulation import SimulationRow
from manyhands.record.sweep import Row
from manyhands.record.texts import milliseconds, share
from manyhands.report.drawing import Axis, Bars, Figure, Item, View, listed

PARTS = ("compute", "serial", "comm", "wait")
"""Parts of a step."""

LINE = 20
"""Letters of a row's name on one line."""

BAR = 34
"""Least height of a bar with the gap around it."""


def parts_ms(row: Row | SimulationRow | Steady) -> dict[str, float]:
    """Return the milliseconds of a step by part."""
    return {part: float(getattr(row, f"{part}_ms")) for part in PARTS}


def split_figure(
    name: str, title: str, about: str, rows: Sequence[tuple[str, Mapping[str, float]]], picture: str = ""
) -> Figure:
    """Draw where time goes: for each row its name, and its milliseconds by part."""
    names = [row_name for row_name, _ in rows]
    percents = split_bars(rows)
    times = [replace(bars, lengths=[round(parts[bars.name], 6) for _, parts in rows]) for bars in percents]
    said = [
        f"{row_name}: " + ", ".join(f"{part} {share(parts[part], sum(parts.values()))}" for part in PARTS)
        for row_name, parts in rows
    ]
    return Figure(
        id=name,
        title=title,
        about=about,
        alt=listed(title, said),
        views=[
            stack_view(percents, names, Axis(unit=" %"), "percent"),
            stack_view(times, names, Axis(unit=" ms"), "milliseconds"),
        ],
        choose="Unit",
        picture=picture,
    )


def split_bars(rows: Sequence[tuple[str, Mapping[str, float]]], names: Mapping[str, str] | None = None) -> list[Bars]:
    """Return one part of all bars after another, as percentages of each row; `names` has other names of the parts."""
    items = []
    for part in PARTS:
        percents = [round(100 * parts[part] / (sum(parts.values()) or 1.0), 3) for _, parts in rows]
        times = [milliseconds(parts[part]) for _, parts in rows]
        hover = [f"{percent:.1f} % · {time}" for percent, time in zip(percents, times, strict=True)]
        items.append(stacked((names or {}).get(part, part), part, [name for name, _ in rows], percents, hover))
    return items


def stacked(name: str, colour: str, rows: Sequence[str], percents: Sequence[float], hover: Sequence[str] = ()) -> Bars:
    """Return one part of all bars; its percentages stand inside where there is room."""
    texts = hover or [f"{value:.1f} %" for value in percents]
    return Bars(
        name=name,
        rows=range(len(rows)),
        lengths=percents,
        colour=colour,
        texts=[f"{value:.0f}" if abs(value) >= 5 else "" for value in percents],
        hover=[f"{_in_lines(row)}\n{name}: {text}" for row, text in zip(rows, texts, strict=True)],
    )


def stack_view(items: Sequence[Item], rows: Sequence[str], x: Axis, label: str = "") -> View:
    """Return a view of bars, the first row on top; long names take several lines, so that bars keep their length."""
    names = [_in_lines(row) for row in rows]
    return View(label=label, items=items, x=x, rows=names, height=stack_height(names))


def _in_lines(name: str) -> str:
    return "\n".join(textwrap.wrap(name, LINE, break_on_hyphens=False)) or name


def stack_height(rows: Sequence[str]) -> int:
    """Return the height of a figure of horizontal bars whose names are broken into lines."""
    lines = max((row.count("\n") + 1 for row in rows), default=1)
    return 52 + max(BAR, 8 + 16 * lines) * max(len(rows), 2)
