"""A figure as plain data: what is drawn along which axes, and the words around it.

`plotly_drawing.py` draws it on a page, `png_drawing.py` as a PNG. Texts may hold any character and line breaks: each of
the two escapes what it must. Colours, dashes and markers are names of `palette.py`, sizes are pixels of a page.
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
    """Shape of the points; `ring` is a circle around what is there already. None for a line alone."""
    size: float = 8
    hollow: bool | Sequence[bool] = False
    """Which points are not filled."""
    reach: tuple[Sequence[float], Sequence[float]] | None = None
    """How far the error bars reach below and above each point."""
    capped: bool = False
    """Whether error bars end in a cap."""
    labels: Sequence[str] = ()
    """Text to the left of each point."""
    told: str | Sequence[str] = ()
    """Text of each point on hovering; of very many points one text, in which {x} and {y} stand for the numbers."""
    opacity: float = 1
    in_legend: bool = True
    groups: Sequence[str] = ()
    """Entries of the legend that hide it, where these are not its own name."""

    @property
    def shape(self) -> str:
        """Shape of the points; a single point has one, since no line can be seen."""
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
    """One part of horizontal bars: it goes on where the part before it ends, unless it has `starts`."""

    name: str
    rows: Sequence[int]
    """Which of the view's rows each bar lies in."""
    lengths: Sequence[float]
    starts: Sequence[float] = ()
    colour: str
    texts: Sequence[str] = ()
    """Text inside each bar."""
    told: Sequence[str] = ()
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
    """An axis; what is not given follows from the data."""

    title: str = ""
    log: bool = False
    span: tuple[float, float] | None = None
    from_zero: bool = False
    """Whether 0 is shown where there is no `span`."""
    zero_line: bool = False
    """Whether a darker line stands at 0."""
    ticks: Sequence[float] = ()
    names: Sequence[str] = ()
    """Texts of the ticks, where these are not numbers."""
    unit: str = ""
    """Text after the number of each tick."""

    @property
    def tick_texts(self) -> list[str]:
        """Texts of the ticks."""
        return list(self.names) or [f"{tick:,.9g}{self.unit}" for tick in self.ticks]


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """One way to look at a figure."""

    label: str = ""
    """What to call it; a figure's only view needs none."""
    items: Sequence[Item]
    """What is drawn, the lowest layer first."""
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
    """What it shows, under the figure."""
    says: str
    """What it shows to those who do not see it."""
    views: Sequence[View]
    """The one that is shown first comes first."""
    choose: str = ""
    """What the views differ in."""
    picture: str = ""
    """Name of the PNG of its first view; none where it is on the page only."""


def dashed(name: str, x: Sequence[float], y: Sequence[float]) -> Series:
    """Return a dashed line to compare with."""
    return Series(name=name, x=x, y=y, colour="muted", width=1.5, dash="dash")


def workers_axis(counts: Sequence[int], reach: float) -> Axis:
    """Return the axis of workers, with a tick at each count that was measured; doubling where there are many."""
    ticks = sorted(set(counts))
    if ticks[-1] > 8:
        return Axis(title="workers", log=True, ticks=ticks)
    return Axis(title="workers", ticks=ticks, span=(min(0.8, ticks[0] - 0.2), reach))


def doubling_axis(title: str) -> Axis:
    """Return an axis on which every doubling takes the same room."""
    return Axis(title=title, log=True, ticks=[2.0**power for power in range(-4, 13)])


MOST_TICKS = 7
"""Ticks of an axis of counts that stand beside each other on a phone."""


def counts_axis(title: str, counts: Iterable[int]) -> Axis:
    """Return an axis of counts on which every doubling takes the same room, with ticks at some of the counts."""
    known = sorted(set(counts))
    each = math.ceil(len(known) / MOST_TICKS)
    room = 10 ** (0.04 * math.log10(max(10, known[-1] / known[0])))
    return Axis(title=title, log=True, ticks=known[::-1][::each][::-1], span=(known[0] / room, known[-1] * room))


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


def decades_axis(title: str, values: Iterable[float], unit: str = "") -> Axis:
    """Return an axis on which every factor of ten takes the same room, with more ticks the fewer of these there are."""
    good = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    room = 10 ** (0.06 * max(0.3, math.log10(max(good) / min(good))))
    low, high = min(good) / room, max(good) * room
    return Axis(title=title, log=True, ticks=factor_ticks(low, high), span=(low, high), unit=unit)


def value_axis(title: str, shown: Sequence[float]) -> Axis:
    """Return an axis from 0, or by factors where values differ by large ones."""
    if is_wide(shown):
        return decades_axis(title, shown)
    return Axis(title=title, span=(0, 1.06 * max(shown, default=1.0)))
