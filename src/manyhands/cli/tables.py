"""Print tables for people: on a terminal the columns that fit, with no figure cut; in a pipe everything."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from manyhands.report.tables.table import Column, Table, one_line

GAP = 1
"""Blanks between two columns."""
LEAST = 24
"""The least width of a column whose texts fold, unless they are shorter."""

UNIT = re.compile(r"(?<=\d) (?=(?:%|[µm]?s\b|min\b|[kMGT]?B\b))")
"""The blank between a number and its unit, at which no line is folded."""
NO_BREAK = "\u00a0"


def print_table(
    console: Console, table: Table, title: str | None = None, styled: Mapping[str, Text] | None = None
) -> None:
    """Print a table: whole in a pipe, else as wide as the terminal, with a note on the columns left out.

    Above it stands `title`, or else the table's caption; `styled` maps the text of a cell to its styled form.

    One record that does not fit is printed as lines instead, and so are several where not even the columns fit that
    must not be left out.
    """
    columns = table.columns
    if title or (title is None and table.caption):
        console.print(Text(title or table.caption, "italic"), soft_wrap=True)
    rows = [[(styled or {}).get(cell) or Text(cell) for cell in row] for row in table.rows]
    widths = [
        max(cell_len(line) for text in (column.heading, *(row[i].plain for row in rows)) for line in text.split("\n"))
        for i, column in enumerate(columns)
    ]
    if not console.is_terminal:
        _print_columns(console, columns, rows, widths)
        return
    kept = _kept(columns, widths, console.width)
    if not kept or (len(rows) == 1 and len(kept) < len(columns)):
        _print_records(console, columns, rows)
        return
    shown, cells = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
    _print_columns(console, shown, cells, _fitted(shown, [widths[i] for i in kept], console.width))
    left_out = [one_line(column.heading) for i, column in enumerate(columns) if i not in kept]
    if left_out:
        where = "--json" if console.stderr else "a pipe (| cat)"  # tables on stderr stand beside a record on stdout
        console.print(Text(f"no room for: {', '.join(left_out)}; a wider terminal or {where} has all"), soft_wrap=True)


def _kept(columns: Sequence[Column[Any]], widths: Sequence[int], room: int) -> list[int]:
    """Return the indices of the columns that fit into `room`; none if one that must not be left out does not fit."""
    needed = [min(width, LEAST) if column.folds else width for column, width in zip(columns, widths, strict=True)]
    left, kept = room + GAP, []
    for i in sorted(range(len(columns)), key=lambda i: columns[i].drop):
        if needed[i] + GAP <= left:
            kept.append(i)
            left -= needed[i] + GAP
        elif not columns[i].drop:
            return []
    return sorted(kept)


def _fitted(columns: Sequence[Column[Any]], widths: Sequence[int], room: int) -> list[int]:
    """Return the widths that fit into `room`: columns that fold share the room left by others, the narrowest first."""
    fitted = list(widths)
    folding = sorted((i for i, column in enumerate(columns) if column.folds), key=lambda i: widths[i])
    left = room - sum(widths[i] for i in range(len(columns)) if i not in folding) - GAP * (len(columns) - 1)
    for count, i in zip(range(len(folding), 0, -1), folding, strict=True):
        fitted[i] = min(widths[i], left // count)
        left -= fitted[i]
    return fitted


def _print_columns(
    console: Console, columns: Sequence[Column[Any]], rows: Sequence[Sequence[Text]], widths: Sequence[int]
) -> None:
    """Print headings and rows, whose cells may have several lines: those of headings end at the same line."""
    headings = [_lines(Text(column.heading, "bold"), width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, headings))
    cells = [[[Text()] * (height - len(lines)) + lines for lines in headings]]
    cells += [[_lines(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    for texts in chain.from_iterable(zip_longest(*row, fillvalue=Text()) for row in cells):
        line = Text()
        for column, text, width in zip(columns, texts, widths, strict=True):
            blanks = " " * (width - cell_len(text.plain))
            line.append_text(Text.assemble(text, blanks) if column.left else Text.assemble(blanks, text))
            line.append(" " * GAP)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _print_records(console: Console, columns: Sequence[Column[Any]], rows: Sequence[Sequence[Text]]) -> None:
    """Print a block for each row, with a line for each column."""
    names = [one_line(column.heading) for column in columns]
    width = max(map(cell_len, names))
    for i, row in enumerate(rows):
        if i:
            console.print(Text(), soft_wrap=True)
        print_facts(console, dict(zip(names, row, strict=True)), width)


def print_facts(console: Console, facts: dict[str, Text] | dict[str, str], width: int = 0) -> None:
    """Print a line for each name and its fact; a terminal folds long facts beside their names."""
    indent = max(width, *(cell_len(name) for name in facts)) + 2
    for name, fact in facts.items():
        room = max(LEAST, console.width - indent) if console.is_terminal else 0
        text = fact if isinstance(fact, Text) else Text(fact)
        first, *others = _lines(text, room) if room else [text]
        console.print(Text.assemble((name, "bold"), " " * (indent - cell_len(name)), first), soft_wrap=True)
        for line in others:
            console.print(Text.assemble(" " * indent, line), soft_wrap=True)


def _lines(text: Text, width: int) -> list[Text]:
    """Return the lines of a text; those that are too long are folded between words, never within one."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        parts = []
        if cell_len(line.plain) > width:
            whole = UNIT.sub(NO_BREAK, line.plain)
            parts = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
        lines += [Text(part.replace(NO_BREAK, " "), line.style) for part in parts] if len(parts) > 1 else [line]
    return lines or [Text()]
