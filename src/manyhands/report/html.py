"""The content of a page, written as one self-contained HTML file and, in short, as Markdown and CSV."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from manyhands.record.texts import num_bytes
from manyhands.report.drawing import Figure
from manyhands.report.palette import DARK, LIGHT
from manyhands.report.plotly_drawing import as_plotly
from manyhands.report.tables.table import Table, as_csv, as_markdown, markdown_text
from manyhands.report.words import Passage

Pair = tuple[str, str]


@dataclass(frozen=True)
class Tile:
    """A key figure in the page's header."""

    label: str
    value: str
    beside: str


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading. Empty parts are not shown, nor are tables without rows."""

    id: str
    title: str
    short: bool = False
    """Whether it may follow another section on one printed page."""
    data: bool = False
    """Whether buttons above it copy the page's Markdown and save its CSV."""
    passages: Sequence[Passage] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    meanings: Sequence[Pair] = ()
    """Headings of columns, and their explanations."""
    pair: Sequence[Figure] = ()
    """Figures side by side where there is room."""
    figures: Sequence[Figure] = ()
    facts: Sequence[Sequence[Pair]] = ()
    """Lists of names and values."""
    commands: Sequence[Pair] = ()
    """Labels, and the commands to type."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the heading would be shown."""
        has_rows = any(table.rows for table in self.tables)
        return not (has_rows or self.passages or self.notes or self.pair or self.figures or self.facts or self.commands)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a whole page."""

    name: str
    """File name of the CSV, without its ending."""
    kicker: str
    title: str
    headline: str
    facts: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    numbers: Table
    """All rows in full precision, for the CSV."""
    blocks: Sequence[Table | list[str] | str]
    """The Markdown below headline and facts: tables, lists of plain texts, and texts that are Markdown already."""
    titled: bool = True
    """Whether the title is a heading of the Markdown."""
    footer: str

    @property
    def figures(self) -> list[Figure]:
        """All figures, in their order."""
        return [figure for section in self.sections for figure in (*section.pair, *section.figures)]

    @property
    def csv(self) -> str:
        """The numbers for a spreadsheet."""
        return as_csv(self.numbers)

    @property
    def markdown(self) -> str:
        """The page in short, for a README."""
        title = f"## {markdown_text(self.title)}" if self.titled else ""
        head = (title, f"**{markdown_text(self.headline)}**", markdown_text(self.facts))
        return "\n\n".join(text for text in (*head, *map(_markdown_block, self.blocks)) if text) + "\n"


def _markdown_block(block: Table | list[str] | str) -> str:
    if isinstance(block, Table):
        return as_markdown(block).rstrip() if block.rows else ""
    return block if isinstance(block, str) else "\n".join(f"- {markdown_text(line)}" for line in block)


def shell_block(label: str, command: str) -> str:
    """Return Markdown that shows a command under its label; empty without a command."""
    return f"{label}\n\n```sh\n{command}\n```" if command else ""


def again(label: str, command: str, path: Path, title: str = "Run it again") -> Section:
    """Return the section of the command that repeats the work, where it is known, and of the one that draws `path`."""
    drawing = ("This report, drawn again from what is stored:", f"manyhands report {shlex.quote(str(path))}")
    return Section("again", title, short=True, commands=[(label, command), drawing] if command else [drawing])


def facts(values: Mapping[str, Any]) -> list[Pair]:
    """Return a record's facts about hardware or versions as texts, with units for names that end in one."""
    pairs = []
    for name, value in values.items():
        if name.endswith("_gib"):
            pairs.append((name.removesuffix("_gib"), f"{value} GiB"))
        elif name.endswith("_bytes"):
            pairs.append((name.removesuffix("_bytes"), num_bytes(value)))
        else:
            text = (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
            pairs.append(("processor" if name == "cpu" else name.replace("_", " "), text))
    return pairs


def render(page: Page) -> str:
    """Return the page as HTML. All texts from records are escaped."""
    from plotly.offline import get_plotlyjs  # the page alone needs it; tables for a terminal do without

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["flow"] = _flow
    figures = [as_plotly(figure) for figure in page.figures]
    return environment.from_string(_asset("page.html")).render(
        page=page,
        sections=[section for section in page.sections if not section.is_empty],
        css=Markup(_asset("page.css")),
        js=Markup(_asset("page.js")),
        plotly=Markup(get_plotlyjs()),
        figures=_json({"figures": figures, "colours": {"light": LIGHT, "dark": DARK}}),
        markdown=_json(page.markdown),
        csv=_json(page.csv),
    )


def _flow(text: str) -> str:
    """Keep a number and its unit, and the bounds of an interval, on one line."""
    text = re.sub(r"(\d) (%|[mµ]?s|min|h)\b", "\\1\u00a0\\2", text.replace(" %", "\u00a0%"))
    return text.replace("\u00a0%: ", "\u00a0%:\u00a0").replace("–", "\u2060–\u2060")


def _asset(name: str) -> str:
    return files("manyhands.report").joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> Markup:
    """Return JSON that may stand in a script element, whatever its texts are; NaN and infinities become null."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
