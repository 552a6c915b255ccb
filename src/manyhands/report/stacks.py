"""Figures of horizontal stacks: one bar a row, cut into parts."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.record.texts import duration, share
from manyhands.report.drawing import Figure, Layout, Trace, View, layout, safe

PARTS = ("compute", "serial", "comm", "wait")
"""Parts of a step."""

LINE = 20
"""Letters of a row's name that stand on one line."""

BAR = 34
"""Least height of a bar with the room around it."""


def split_figure(
    name: str, title: str, about: str, rows: Sequence[str], parts_ms: Sequence[Mapping[str, float]]
) -> Figure:
    """Draw where time goes: for each row, milliseconds by part."""
    wholes = [sum(parts.values()) or 1.0 for parts in parts_ms]
    millis = {part: [round(parts[part], 6) for parts in parts_ms] for part in PARTS}
    shares = {part: [round(100 * ms / w, 3) for ms, w in zip(millis[part], wholes, strict=True)] for part in PARTS}
    says = "; ".join(
        f"{row}: " + ", ".join(f"{part} {share(parts[part], sum(parts.values()))}" for part in PARTS)
        for row, parts in zip(rows, parts_ms, strict=True)
    )
    return Figure(
        id=name,
        title=title,
        about=about,
        says=f"{title}. {says}.",
        data=[_split_trace(part, rows, shares[part], millis[part]) for part in PARTS],
        layout=stack_layout("stack", rows),
        height=stack_height(rows),
        choose="Unit",
        views=[
            View("percent", {"x": list(shares.values())}, {"xaxis.ticksuffix": " %"}),
            View("milliseconds", {"x": list(millis.values())}, {"xaxis.ticksuffix": " ms"}),
        ],
    )


def _split_trace(part: str, rows: Sequence[str], shares: list[float], millis: list[float]) -> Trace:
    return {
        **stack_trace(part, part, rows, shares),
        "customdata": [[percents, duration(ms / 1e3)] for percents, ms in zip(shares, millis, strict=True)],
        "hovertemplate": f"%{{y}}<br>{part}: %{{customdata[0]:.1f}} % · %{{customdata[1]}}<extra></extra>",
    }


def stack_trace(name: str, colour: str, rows: Sequence[str], percents: list[float]) -> Trace:
    """Return one part of all bars; its percents stand inside where there is room."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [broken(row) for row in rows],
        "x": percents,
        "marker": {"color": f"@{colour}"},
        "text": [f"{value:.0f}" if abs(value) >= 5 else "" for value in percents],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": f"@on-{colour}"},
        "hovertemplate": f"%{{y}}<br>{name}: %{{x:.1f}} %<extra></extra>",
    }


def broken(name: str) -> str:
    """Break a long name into lines, so that bars keep their room on a phone."""
    return "<br>".join(safe(line) for line in _lines(name))


def _lines(name: str) -> list[str]:
    return textwrap.wrap(name, LINE, break_on_hyphens=False) or [name]


def stack_layout(mode: str, rows: Sequence[str]) -> Layout:
    """Return the layout of a figure of bars, the first row on top."""
    longest = max((len(line) for row in rows for line in _lines(row)), default=0)
    names: dict[str, Any] = {"type": "category", "autorange": "reversed", "ticksuffix": " ", "automargin": False}
    found = layout({"ticksuffix": " %"}, names, barmode=mode, bargap=0.28)
    found["margin"]["l"] = 16 + 7 * longest
    return found | {"uniformtext": {"minsize": 10, "mode": "hide"}}


def stack_height(rows: Sequence[str]) -> int:
    """Return how high a figure of horizontal bars is."""
    lines = max((len(_lines(row)) for row in rows), default=1)
    return 52 + max(BAR, 8 + 16 * lines) * max(len(rows), 2)
