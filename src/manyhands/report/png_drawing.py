"""Figures as PNGs, for READMEs and papers, drawn by matplotlib."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure as Sheet
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator

from manyhands.report.drawing import Axis, Band, Bars, Figure, Item, Mark, Series, Shade, View
from manyhands.report.palette import LIGHT

POINTS = 0.7
"""Points of a PNG per pixel of the page."""
LINE = 105
"""Letters of the legend on one line."""
SWATCH = 8
"""Letters that would fit into the swatch of a legend's entry."""
TITLE = 72
"""Letters of the title on one line."""
TICKS = 66
"""Letters of the ticks along the axis x."""
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 3, 2, 3)),
}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "cross": "P", "ring": "o"}


def save_pictures(figures: Iterable[Figure], title: str, folder: Path) -> list[Path]:
    """Save the first view of each figure that has a picture, titled with the page's title too; return the files."""
    saved = []
    for figure in figures:
        if figure.picture:
            is_repeated = figure.title.lower() in title.lower()
            sheet = draw(figure.views[0], title if is_repeated else f"{figure.title} · {title}")
            saved.append(folder / f"{figure.picture}.png")
            sheet.savefig(saved[-1], dpi=160)
    return saved


def draw(view: View, title: str) -> Sheet:
    """Draw one view of a figure, with its legend below, where it hides nothing."""
    entries = [entry for item in view.items if (entry := _entry(item))]
    lines = _legend_lines(entries)
    sheet = Sheet(figsize=(6.4, 0.8 + view.height / 100 + 0.19 * lines), layout="constrained")
    axes = sheet.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color=LIGHT["grid"])
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    marked = any(isinstance(item, Mark) for item in view.items)
    axes.set_title(_plain(textwrap.fill(title, TITLE)), loc="left", fontsize=11, pad=18 if marked else 8)
    _draw_items(axes, view)
    _set_axis(axes.xaxis, view.x)
    _set_axis(axes.yaxis, view.y)
    if view.rows:
        axes.set_yticks(range(len(view.rows)), [_plain(row) for row in view.rows])
        axes.set_ylim(len(view.rows) - 0.5, -0.5)
    if entries:
        columns = math.ceil(len(entries) / lines)
        sheet.legend(handles=entries, frameon=False, ncols=columns, loc="outside lower center", fontsize=8)
    return sheet


def _plain(text: str) -> str:
    """Escape the character that starts a formula in matplotlib."""
    return text.replace("$", r"\$")


def _draw_items(axes: Axes, view: View) -> None:
    left, right = [0.0] * len(view.rows), [0.0] * len(view.rows)  # where the stacks of bars end
    for item in view.items:
        match item:
            case Series():
                _draw_series(axes, item)
            case Band():
                axes.fill_between(item.x, item.low, item.high, **_look(item))
            case Bars():
                _draw_bars(axes, item, left, right)
            case Shade():
                axes.axhspan(item.low, item.high, color=LIGHT["grid"], alpha=0.55, linewidth=0)
            case Mark():
                axes.axvline(item.x, color=LIGHT["muted"], linestyle=":", linewidth=POINTS)
                place: Any = {"transform": axes.get_xaxis_transform(), "va": "bottom"}
                axes.text(item.x, 1, _plain(item.text), fontsize=8, color=LIGHT["muted"], **place)


def _draw_series(axes: Axes, item: Series) -> None:
    colour = LIGHT[item.colour]
    if item.reach:
        axes.errorbar(
            *(item.x, item.y, item.reach), fmt="none", ecolor=colour, elinewidth=1, capsize=3 if item.capped else 0
        )
    if item.width:
        axes.plot(item.x, item.y, **_line(item))
    if item.shape:
        hollow = [item.hollow] * len(item.x) if isinstance(item.hollow, bool) else item.hollow
        for kind in set(hollow):
            alike = [i for i, is_hollow in enumerate(hollow) if is_hollow == kind]
            xs, ys = [item.x[i] for i in alike], [item.y[i] for i in alike]
            axes.plot(xs, ys, linestyle="none", **_marker(item, kind))
    for x, y, label in zip(item.x, item.y, item.labels, strict=False):
        place: Any = {"xytext": (-9, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
        axes.annotate(_plain(label), (x, y), color=colour, **place)


def _line(item: Series) -> dict[str, Any]:
    width = max(1.0, POINTS * item.width)
    return {"color": LIGHT[item.colour], "linestyle": DASHES[item.dash], "linewidth": width, "alpha": item.opacity}


def _marker(item: Series, hollow: bool) -> dict[str, Any]:
    face = "none" if item.shape == "ring" else LIGHT["panel"] if hollow else LIGHT[item.colour]
    edge = {"markeredgecolor": LIGHT[item.colour], "markeredgewidth": 1.1}
    return {"marker": MARKERS[item.shape], "markersize": POINTS * item.size, "markerfacecolor": face, **edge}


def _look(item: Band) -> dict[str, Any]:
    return {"color": LIGHT[item.colour], "alpha": item.opacity, "linewidth": 0}


def _draw_bars(axes: Axes, item: Bars, left: list[float], right: list[float]) -> None:
    """Draw one part of the bars; without `starts`, at the ends of the stacks, `left` and `right`, which are moved."""
    starts = list(item.starts)
    for row, length in zip(item.rows, item.lengths, strict=True) if not starts else ():
        ends = left if length < 0 else right
        starts.append(ends[row])
        ends[row] += length
    axes.barh(item.rows, item.lengths, left=starts, height=0.72, color=LIGHT[item.colour])
    for row, start, length, text in zip(item.rows, starts, item.lengths, item.texts, strict=False):
        place: Any = {"ha": "center", "va": "center", "fontsize": 8}
        axes.text(start + length / 2, row, _plain(text), color=LIGHT[f"on-{item.colour}"], **place)


def _entry(item: Item) -> Artist | None:
    """Return an item's entry of the legend; None where it has none."""
    if isinstance(item, Shade | Mark) or not item.in_legend:
        return None
    label = _plain(item.name)
    if isinstance(item, Series):
        look = _line(item) if item.width else {"linestyle": "none"}
        marker = _marker(item, item.hollow is True) if item.shape else {}
        return Line2D([], [], label=label, **look, **marker)
    return Patch(label=label, **(_look(item) if isinstance(item, Band) else {"color": LIGHT[item.colour]}))


def _legend_lines(entries: Sequence[Artist]) -> int:
    """Return the fewest lines on which the entries of a legend fit."""
    widths = [len(str(entry.get_label())) + SWATCH for entry in entries]
    for lines in range(1, len(widths)):
        if sum(max(widths[i : i + lines]) for i in range(0, len(widths), lines)) <= LINE:
            return lines
    return len(widths)


def _set_axis(drawn: DrawnAxis, axis: Axis) -> None:
    name: Any = drawn.axis_name  # type: ignore[attr-defined]
    if axis.log:
        drawn.axes.set(**{f"{name}scale": "log"})
    if axis.span:
        drawn.axes.set(**{f"{name}lim": axis.span})
    elif axis.from_zero:
        drawn.axes.set(**{f"{name}lim": (0, None)})
    drawn.set_label_text(_plain(axis.title))
    if axis.ticks:
        drawn.set_major_locator(FixedLocator(list(axis.ticks)))
        texts = _apart(drawn, axis) if name == "x" else axis.tick_texts
        drawn.set_major_formatter(FixedFormatter([_plain(text) for text in texts]))
    else:
        drawn.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,.9g}{axis.unit}"))
    drawn.set_minor_locator(NullLocator())
    if axis.zero_line:
        drawn.axes.axhline(0, color=LIGHT["muted"], linewidth=1)


def _apart(drawn: DrawnAxis, axis: Axis) -> list[str]:
    """Return the texts of the ticks along x, empty where one would overlap its neighbour to the right."""
    scale = math.log if axis.log else float
    low, high = (scale(end) for end in drawn.get_view_interval())
    texts, free = [], math.inf
    for tick, text in zip(reversed(axis.ticks), reversed(axis.tick_texts), strict=True):
        middle = TICKS * (scale(tick) - low) / (high - low)
        half = (max(len(line) for line in text.split("\n")) + 1) / 2
        texts.append(text if middle + half <= free else "")
        free = middle - half if texts[-1] else free
    return texts[::-1]
