"""What all figures share: a figure as plain data for plotly, its axes, and texts that are safe in it."""

import html
from collections.abc import Sequence
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
