"""Figures of horizontal stacks: one bar a row, cut into parts."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from manyhands.record.texts import duration, share
from manyhands.report.drawing import Axis, Bars, Figure, Item, View

PARTS = ("compute", "serial", "comm", "wait")
"""Parts of a step."""

LINE = 20
"""Letters of a row's name that stand on one line."""

BAR = 34
"""Least height of a bar with the room around it."""


def split_figure(
    name: str, title: str, about: str, rows: Sequence[str], parts_ms: Sequence[Mapping[str, float]], picture: str = ""
) -> Figure:
    """Draw where time goes: for each row, milliseconds by part."""
    wholes = [sum(parts.values()) or 1.0 for parts in parts_ms]
    millis = {part: [round(parts[part], 6) for parts in parts_ms] for part in PARTS}
    shares = {part: [round(100 * ms / w, 3) for ms, w in zip(millis[part], wholes, strict=True)] for part in PARTS}
    told = {
        part: [f"{p:.1f} % · {duration(ms / 1e3)}" for p, ms in zip(shares[part], millis[part], strict=True)]
        for part in PARTS
    }
    percents = [stacked(part, part, rows, shares[part], told[part]) for part in PARTS]
    says = "; ".join(
        f"{row}: " + ", ".join(f"{part} {share(parts[part], sum(parts.values()))}" for part in PARTS)
        for row, parts in zip(rows, parts_ms, strict=True)
    )
    return Figure(
        id=name,
        title=title,
        about=about,
        says=f"{title}. {says}.",
        views=[
            stack_view(percents, rows, Axis(unit=" %"), "percent"),
            stack_view(
                [replace(bars, lengths=millis[bars.name]) for bars in percents], rows, Axis(unit=" ms"), "milliseconds"
            ),
        ],
        choose="Unit",
        picture=picture,
    )


def stacked(name: str, colour: str, rows: Sequence[str], percents: Sequence[float], told: Sequence[str] = ()) -> Bars:
    """Return one part of all bars; its percents stand inside where there is room."""
    texts = told or [f"{value:.1f} %" for value in percents]
    return Bars(
        name=name,
        rows=range(len(rows)),
        lengths=percents,
        colour=colour,
        texts=[f"{value:.0f}" if abs(value) >= 5 else "" for value in percents],
        told=[f"{broken(row)}\n{name}: {text}" for row, text in zip(rows, texts, strict=True)],
    )


def stack_view(items: Sequence[Item], rows: Sequence[str], x: Axis, label: str = "") -> View:
    """Return a view of bars, the first row on top; long names take several lines, so that bars keep their room."""
    return View(label=label, items=items, x=x, rows=[broken(row) for row in rows], height=stack_height(rows))


def broken(name: str) -> str:
    """Break a long name into lines."""
    return "\n".join(textwrap.wrap(name, LINE, break_on_hyphens=False)) or name


def stack_height(rows: Sequence[str]) -> int:
    """Return how high a figure of horizontal bars is."""
    lines = max((broken(row).count("\n") + 1 for row in rows), default=1)
    return 52 + max(BAR, 8 + 16 * lines) * max(len(rows), 2)
