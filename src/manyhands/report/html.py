"""One self-contained HTML page: what stands on it, and how it is written. Opening it needs no network."""

import json
import math
import re
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from manyhands.report.drawing import Figure
from manyhands.report.palette import DARK, LIGHT
from manyhands.report.plotly_drawing import as_plotly
from manyhands.report.tables.table import Table
from manyhands.report.words import Passage


@dataclass(frozen=True)
class Tile:
    """A figure that is seen first."""

    label: str
    value: str
    beside: str


@dataclass(frozen=True)
class Section:
    """A part of the page, with a heading; what is empty is not shown."""

    id: str
    title: str
    short: bool = False
    """Whether it may follow another on one printed page."""
    data: bool = False
    """Whether the tables can be taken from here as Markdown and CSV."""
    passages: list[Passage] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    meanings: list[tuple[str, str]] = field(default_factory=list)
    pair: list[Figure] = field(default_factory=list)
    """Figures side by side where there is room."""
    figures: list[Figure] = field(default_factory=list)
    facts: list[list[tuple[str, str]]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)
    """What to type, with a word on what for."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        parts = (self.passages, self.tables, self.notes, self.pair, self.figures, self.facts, self.commands)
        return not any(parts)


@dataclass(frozen=True)
class Page:
    """All that stands on a page."""

    kicker: str
    title: str
    headline: str
    facts: str
    tiles: list[Tile]
    sections: list[Section]
    markdown: str
    csv: str
    csv_name: str
    footer: str
    """What its figures are."""

    @property
    def figures(self) -> list[Figure]:
        """All figures, in their order."""
        return [figure for section in self.sections for figure in (*section.pair, *section.figures)]


def render(page: Page) -> str:
    """Write the page. All that comes from a record is escaped."""
    from plotly.offline import get_plotlyjs  # the page alone needs it; tables for a terminal do without

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["flow"] = _flow
    template = environment.from_string(_own("page.html"))
    sections = [section for section in page.sections if not section.is_empty]
    shown = Page(**{**vars(page), "sections": sections})
    return template.render(
        page=shown,
        css=Markup(_own("page.css")),
        js=Markup(_own("page.js")),
        plotly=Markup(get_plotlyjs()),
        figures=_json(
            {"figures": [as_plotly(figure) for figure in page.figures], "colours": {"light": LIGHT, "dark": DARK}}
        ),
        markdown=_json(page.markdown),
        csv=_json(page.csv),
    )


def _flow(text: str) -> str:
    """Keep a number and its unit, and the bounds of an interval, on one line."""
    text = re.sub(r"(\d) (%|[mµ]?s|min|h)\b", "\\1\u00a0\\2", text.replace(" %", "\u00a0%"))
    return text.replace("\u00a0%: ", "\u00a0%:\u00a0").replace("–", "\u2060–\u2060")


def _own(name: str) -> str:
    return files("manyhands.report").joinpath(name).read_text(encoding="utf-8")


def _json(thing: Any) -> Markup:
    """Write JSON that may stand in a script element, whatever its texts are; numbers that are none become null."""
    text = json.dumps(_finite(thing), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _finite(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: _finite(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_finite(value) for value in thing]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing
