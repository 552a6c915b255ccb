"""A figure as plain data: items, axes, and the words around them.

`plotly_drawing.py` draws it on a page, `png_drawing.py` as a PNG. Texts may hold any character and line breaks: both
escape them. Colours, dashes and markers are names of `palette.py`, sizes are pixels of a page.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """A line, points, or both; without any point, an entry of the legend alone."""

    name: str
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    colour: str
    width: float = 0
    """Width of the line; 0 for points alone."""
    dash: str = "solid"
    marker: str = ""
    """Shape of the points; `ring` is a circle around a point of another series. Empty for a line alone."""
    size: float = 8
    hollow: bool | Sequence[bool] = False
    """Which points are not filled."""
    reach: tuple[Sequence[float], Sequence[float]] | None = None
    """Lengths of the error bars below and above each point."""
    capped: bool = False
    """Whether error bars end in a cap."""
    labels: Sequence[str] = ()
    """Text to the left of each point."""
    hover: str | Sequence[str] = ()
    """Text of each point on hovering; or one text for all points, in which {x} and {y} stand for the numbers."""
    opacity: float = 1
    in_legend: bool = True
    groups: Sequence[str] = ()
    """Names of the legend's entries that hide the series; empty for its own name."""

    @property
    def shape(self) -> str:
        """Shape of the points; a single point has one, since a line through it would be invisible."""
        return self.marker or ("circle" if len(self.x) == 1 else "")


@final
@dataclass(frozen=True, kw_only=True)
class Band:
    """An area between a lower and an upper line."""

    name: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str
    opacity: float
    in_legend: bool = True


@final
@dataclass(frozen=True, kw_only=True)
class Bars:
    """One part of horizontal bars: it begins where the part before it ends, unless it has `starts`."""

    name: str
    rows: Sequence[int]
    """Index of the view's row for each bar."""
    lengths: Sequence[float]
    starts: Sequence[float] = ()
    colour: str
    texts: Sequence[str] = ()
    """Text inside each bar."""
    hover: Sequence[str] = ()
    """Text of each bar on hovering."""
    in_legend: bool = True


@final
@dataclass(frozen=True)
class Shade:
    """A grey area over the whole width, between two values of y."""

    low: float
    high: float


@final
@dataclass(frozen=True)
class Mark:
    """A dotted line over the whole height, with a text on top."""

    x: float
    text: str


Item = Series | Band | Bars | Shade | Mark


@final
@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis; its span and ticks follow from the data where they are not given."""

    title: str = ""
    log: bool = False
    span: tuple[float, float] | None = None
    from_zero: bool = False
    """Whether the axis begins at 0 where there is no `span`."""
    zero_line: bool = False
    """Whether a darker line stands at 0."""
    ticks: Sequence[float] = ()
    names: Sequence[str] = ()
    """Texts of the ticks; empty where their numbers are shown."""
    unit: str = ""
    """Text after the number of each tick."""

    @property
    def tick_texts(self) -> list[str]:
        """Names of the ticks, or else their numbers with the unit."""
        return list(self.names) or [f"{tick:,.9g}{self.unit}" for tick in self.ticks]


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """One way to look at a figure."""

    label: str = ""
    """Name among the figure's views; empty for the only one."""
    items: Sequence[Item]
    """The lowest layer first."""
    x: Axis
    y: Axis = field(default_factory=Axis)
    rows: Sequence[str] = ()
    """Names of the rows of bars, the first on top; they take the place of the axis y."""
    height: int = 350


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure and the words around it."""

    id: str
    title: str
    about: str
    """Explanation under the figure."""
    alt: str
    """Alternative text for those who do not see it."""
    views: Sequence[View]
    """The one shown at first comes first."""
    choose: str = ""
    """What the views differ in."""
    picture: str = ""
    """File name of the PNG of its first view, without the ending; empty where it is on the page only."""


def listed(title: str, texts: Iterable[str]) -> str:
    """Return an alternative text: a title, and one text for each item of the figure."""
    return f"{title}. {'; '.join(texts)}."


def dashed(name: str, x: Sequence[float], y: Sequence[float]) -> Series:
    """Return a dashed line for comparison."""
    return Series(name=name, x=x, y=y, colour="muted", width=1.5, dash="dash")


MOST_TICKS = 7
"""Most ticks of an axis of counts that fit side by side on a phone."""


def counts_axis(title: str, counts: Iterable[int]) -> Axis:
    """Return a logarithmic axis of counts, with ticks at some of the counts."""
    known = sorted(set(counts))
    stride = math.ceil(len(known) / MOST_TICKS)
    room = 10 ** (0.04 * math.log10(max(10, known[-1] / known[0])))
    return Axis(title=title, log=True, ticks=known[::-1][::stride][::-1], span=(known[0] / room, known[-1] * room))


WIDE = 20.0
"""Ratio of the greatest to the least value beyond which an axis is logarithmic."""


def is_wide(values: Iterable[float]) -> bool:
    """Tell whether values differ so widely that their axis should be logarithmic."""
    low, high = positive_span(values)
    return high / low > WIDE


def positive_span(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the greatest of the values that are positive and finite; (1, 1) without any."""
    positive = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    return min(positive), max(positive)


NARROW = 10.0
"""Ratio below which a logarithmic axis has ticks at even distances: powers of ten would be too few."""


def factor_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two bounds, as ticks of a logarithmic axis."""
    if high / low < NARROW:
        rough = (high - low) / 4
        least = 10.0 ** math.floor(math.log10(rough))
        step = max(part * least for part in (1, 2, 5) if part * least <= rough)
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    reach = math.log10(high / low)
    parts = (1, 2, 5) if reach < 2.2 else (1, 3) if reach < 3.8 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for decade in decades for part in parts if low <= (tick := part * 10.0**decade) <= high]


def decades_axis(title: str, values: Iterable[float], unit: str = "") -> Axis:
    """Return a logarithmic axis around the positive values, with more ticks the fewer powers of ten it spans."""
    low, high = positive_span(values)
    room = 10 ** (0.06 * max(0.3, math.log10(high / low)))
    low, high = low / room, high * room
    return Axis(title=title, log=True, ticks=factor_ticks(low, high), span=(low, high), unit=unit)


def value_axis(title: str, shown: Sequence[float]) -> Axis:
    """Return an axis from 0, or a logarithmic one where the values differ widely."""
    if is_wide(shown):
        return decades_axis(title, shown)
    return Axis(title=title, span=(0, 1.06 * max(shown, default=1.0)))
