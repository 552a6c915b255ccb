"""What all figures share: a figure as plain data for plotly, its axes, and texts that are safe in it."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Trace = dict[str, Any]
Layout = dict[str, Any]


@dataclass(frozen=True)
class View:
    """A way to look at a figure: what it changes in the traces and the layout."""

    label: str
    traces: dict[str, list[Any]] = field(default_factory=dict)
    """By property, a value for each trace."""
    layout: Layout = field(default_factory=dict)
    """By dotted path, a value."""
    data: list[Trace] | None = None
    """Traces in place of the figure's own."""


@dataclass(frozen=True)
class Figure:
    """A figure as plotly reads it, and the words around it. Colours are names of the palette."""

    id: str
    title: str
    about: str
    """What it shows, under the figure."""
    says: str
    """What it shows to those who do not see it."""
    data: list[Trace]
    layout: Layout
    height: int = 350
    choose: str = ""
    """What the views differ in."""
    views: list[View] = field(default_factory=list)


def safe(text: str) -> str:
    """Escape what plotly would take for a tag."""
    return html.escape(text, quote=False)


def layout(x: Layout, y: Layout, **more: Any) -> Layout:
    """Return a figure's layout: axes in the page's colours."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "@text", "size": 13},
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48 if x.get("title") else 28},
        "showlegend": False,  # the page makes its own, which wraps on a phone and can be reached by keyboard
        "hoverlabel": {"bgcolor": "@panel", "bordercolor": "@grid", "font": {"color": "@text"}, "align": "left"},
        "xaxis": _axis(**x),
        "yaxis": _axis(**y),
        **more,
    }


def _axis(title: str = "", **more: Any) -> Layout:
    return {
        **({"title": {"text": title, "standoff": 8, "font": {"size": 12, "color": "@muted"}}} if title else {}),
        "gridcolor": "@grid",
        "linecolor": "@grid",
        "zerolinecolor": "@grid",
        "automargin": True,
        "tickfont": {"size": 12},
        **more,
    }


def workers_axis(counts: Sequence[int], reach: float) -> Layout:
    """Return the axis of workers, with a tick at each count that was measured; doubling where there are many."""
    many = max(counts) > 8
    ticks = sorted(set(counts))
    if many:
        return {"title": "workers", "type": "log", "tickvals": ticks, "ticktext": [str(n) for n in ticks]}
    return {"title": "workers", "tickvals": ticks, "range": [min(0.8, min(ticks) - 0.2), reach]}


def doubling_axis(title: str) -> Layout:
    """Return an axis on which every doubling takes the same room."""
    ticks = [2.0**power for power in range(-4, 13)]
    return {"title": title, "type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


MOST_TICKS = 7
"""Ticks of an axis of counts that stand beside each other on a phone."""


def counts_axis(title: str, counts: Iterable[int]) -> Layout:
    """Return an axis of counts on which every doubling takes the same room, with ticks at some of the counts."""
    known = sorted(set(counts))
    each = math.ceil(len(known) / MOST_TICKS)
    ticks = known[::-1][::each][::-1]
    room = 0.04 * math.log10(max(10, known[-1] / known[0]))
    reach = [math.log10(known[0]) - room, math.log10(known[-1]) + room]
    return {"title": title, "type": "log", "tickvals": ticks, "ticktext": [f"{n:,}" for n in ticks], "range": reach}


WIDE = 20.0
"""A factor between the least and the greatest value from which on an axis goes by factors."""


def is_wide(values: Iterable[float]) -> bool:
    """Tell whether values differ by so large factors that an axis should go by factors."""
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return bool(positive) and max(positive) / min(positive) > WIDE


NARROW = 10.0
"""A factor up to which an axis by factors has ticks at even distances: round factors would be too few."""


def factor_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two, for an axis on which every factor of ten takes the same room."""
    if high / low < NARROW:
        rough = (high - low) / 4
        least = 10.0 ** math.floor(math.log10(rough))
        step = max(part * least for part in (1, 2, 5) if part * least <= rough)
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    reach = math.log10(high / low)
    parts = (1, 2, 5) if reach < 2.2 else (1, 3) if reach < 3.8 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for decade in decades for part in parts if low <= (tick := part * 10.0**decade) <= high]


def decades_axis(title: str, values: Iterable[float], unit: str = "") -> Layout:
    """Return an axis on which every factor of ten takes the same room, with more ticks the fewer of these there are."""
    good = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = math.log10(min(good)), math.log10(max(good))
    room = 0.06 * max(0.3, high - low)
    ticks = factor_ticks(10 ** (low - room), 10 ** (high + room))
    texts = [f"{tick:,.9g}{unit}" for tick in ticks]
    return {"title": title, "type": "log", "tickvals": ticks, "ticktext": texts, "range": [low - room, high + room]}


def value_axis(title: str, shown: Sequence[float]) -> Layout:
    """Return an axis from 0, or by factors where values differ by large ones."""
    if is_wide(shown):
        return decades_axis(title, shown)
    return {"title": title, "type": "linear", "range": [0, 1.06 * max(shown, default=1.0)]}


def key(name: str, group: str, marker: Layout, **more: Any) -> Trace:
    """Return an entry of the legend for all traces that have its group among their `meta.groups`."""
    point = {"size": 9, "symbol": "circle", **marker}
    about = {"type": "scatter", "mode": "markers", "name": safe(name), "x": [None], "y": [None], "hoverinfo": "skip"}
    return {**about, "marker": point, "meta": {"groups": [safe(group)]}, **more}


def straight(name: str, x: list[float], y: list[float]) -> Trace:
    """Return a dashed line to compare with."""
    line = {"color": "@muted", "width": 1.5, "dash": "dash"}
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line, "hoverinfo": "skip"}
