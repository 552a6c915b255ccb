"""Figures as plotly reads them, for a page, whose script replaces colour names such as `@mpi` by colours."""

import html
import math
from typing import Any

from manyhands.report.drawing import Axis, Band, Bars, Figure, Mark, Series, Shade, View

Json = dict[str, Any]


def as_plotly(figure: Figure) -> Json:
    """Return a figure as the page's script reads it: data and layout of each of its views."""
    return {"id": figure.id, "views": [as_plot(view) for view in figure.views]}


def as_plot(view: View) -> Json:
    """Return plotly's data and layout of one view."""
    data, shapes, notes = [], [], []
    for item in view.items:
        match item:
            case Series():
                data.append(_series(item))
            case Band():
                data.append(_band(item))
            case Bars():
                data.append(_bars(item, view))
            case Shade():
                place = {"xref": "paper", "x0": 0, "x1": 1, "y0": item.low, "y1": item.high, "layer": "below"}
                shapes.append({"type": "rect", **place, "fillcolor": "@grid", "opacity": 0.55, "line": {"width": 0}})
            case Mark():
                place = {"x0": item.x, "x1": item.x, "yref": "paper", "y0": 0, "y1": 1}
                shapes.append({"type": "line", **place, "line": {"color": "@muted", "width": 1, "dash": "dot"}})
                above = {"x": item.x, "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left"}
                font = {"size": 11, "color": "@muted"}
                notes.append({**above, "showarrow": False, "text": _escaped(item.text), "font": font})
    return {"data": data, "layout": {**_layout(view), "shapes": shapes, "annotations": notes}}


def _escaped(text: str) -> str:
    """Escape what plotly would take for a tag; line breaks become tags."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def _series(item: Series) -> Json:
    colour, parts = f"@{item.colour}", {"lines": item.width, "markers": item.shape, "text": item.labels}
    trace: Json = {
        "type": "scatter",
        "mode": "+".join(part for part, is_drawn in parts.items() if is_drawn),
        "name": _escaped(item.name),
        "x": list(item.x),
        "y": list(item.y),
        "showlegend": item.in_legend,
        **_hover(item),
    }
    if item.opacity < 1:
        trace["opacity"] = item.opacity
    if item.groups:
        trace["meta"] = {"groups": [_escaped(group) for group in item.groups]}
    if item.width:
        trace["line"] = {"color": colour, "width": item.width, "dash": item.dash}
    if item.shape:
        hollow, fills = item.hollow, [colour, "@panel"]
        trace["marker"] = {
            "color": fills[hollow] if isinstance(hollow, bool) else [fills[is_hollow] for is_hollow in hollow],
            "symbol": "circle-open" if item.shape == "ring" else item.shape,
            "size": item.size,
            "line": {"color": colour, "width": 1.6},
        }
    if item.reach:
        below, above = item.reach
        bars = {"type": "data", "symmetric": False, "array": list(above), "arrayminus": list(below)}
        trace["error_y"] = {**bars, "color": colour, "thickness": 1.4, "width": 5 if item.capped else 0}
    if item.labels:
        trace |= {"text": [_escaped(label) for label in item.labels], "textfont": {"color": colour, "size": 14}}
        trace |= {"textposition": "middle left", "cliponaxis": False}
    return trace


def _hover(item: Series | Bars) -> Json:
    if not item.hover:
        return {"hoverinfo": "skip"}
    if isinstance(item.hover, str):
        text = _escaped(item.hover).replace("{x}", "%{x:.5~g}").replace("{y}", "%{y:.5~g}")
        return {"hovertemplate": f"{text}<extra></extra>"}
    return {"customdata": [_escaped(text) for text in item.hover], "hovertemplate": "%{customdata}<extra></extra>"}


def _band(item: Band) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": _escaped(item.name),
        "showlegend": item.in_legend,
        "x": [*item.x, *reversed(item.x)],
        "y": [*item.high, *reversed(item.low)],
        "fill": "toself",
        "fillcolor": f"@{item.colour}",
        "opacity": item.opacity,
        "line": {"width": 0, "color": f"@{item.colour}"},
        "hoverinfo": "skip",
    }


def _bars(item: Bars, view: View) -> Json:
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": _escaped(item.name),
        "showlegend": item.in_legend,
        "y": [_escaped(view.rows[row]) for row in item.rows],
        "x": list(item.lengths),
        "marker": {"color": f"@{item.colour}"},
        **_hover(item),
    }
    if item.starts:
        trace["base"] = list(item.starts)
    if item.texts:
        font, texts = {"color": f"@on-{item.colour}"}, [_escaped(text) for text in item.texts]
        trace |= {"text": texts, "textposition": "inside", "insidetextanchor": "middle"}
        trace |= {"textangle": 0, "insidetextfont": font}
    return trace


def _layout(view: View) -> Json:
    marked = any(isinstance(item, Mark) for item in view.items)
    overlaid = any(isinstance(item, Bars) and item.starts for item in view.items)
    longest = max((len(line) for row in view.rows for line in row.split("\n")), default=0)
    return {
        "height": view.height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@muted", "activecolor": "@text"},
        "font": {"color": "@text", "size": 13},
        "margin": {
            "l": 16 + 7 * longest if view.rows else 56,
            "r": 16,
            "t": 24 if marked else 12,
            "b": 48 if view.x.title else 28,
        },
        "showlegend": False,  # the page makes its own, which wraps on a phone and can be reached by keyboard
        "hoverlabel": {"bgcolor": "@panel", "bordercolor": "@grid", "font": {"color": "@text"}, "align": "left"},
        "xaxis": _axis(view.x),
        "yaxis": _rows(view) if view.rows else _axis(view.y),
        "barmode": "overlay" if overlaid else "relative",
        "bargap": 0.28,
        "uniformtext": {"minsize": 10, "mode": "hide"},
    }


def _axis(axis: Axis) -> Json:
    drawn: Json = {
        "type": "log" if axis.log else "linear",
        "gridcolor": "@grid",
        "linecolor": "@grid",
        "zerolinecolor": "@muted" if axis.zero_line else "@grid",
        "zerolinewidth": 1.5 if axis.zero_line else 1,
        "automargin": True,
        "tickfont": {"size": 12},
    }
    if axis.title:
        drawn["title"] = {"text": _escaped(axis.title), "standoff": 8, "font": {"size": 12, "color": "@muted"}}
    if axis.ticks:
        drawn |= {"tickvals": list(axis.ticks), "ticktext": [_escaped(text) for text in axis.tick_texts]}
    elif axis.unit:
        drawn["ticksuffix"] = _escaped(axis.unit)
    if axis.span:
        drawn["range"] = [math.log10(end) for end in axis.span] if axis.log else list(axis.span)
    elif axis.from_zero:
        drawn["rangemode"] = "tozero"
    return drawn


def _rows(view: View) -> Json:
    """Return the axis of rows; all are named, so that a row without bars keeps its line."""
    names, count = [_escaped(row) for row in view.rows], len(view.rows)
    order = {"categoryorder": "array", "categoryarray": names, "range": [count - 0.5, -0.5]}
    return {**_axis(Axis(unit=" ")), **order, "type": "category", "automargin": False}
