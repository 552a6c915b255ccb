"""Columns and tables, for terminal, page, Markdown and CSV.

From the same columns, `tabulate` makes a table of texts for people, `numbers` one of full-precision values for a
spreadsheet.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

from manyhands.record.texts import NOTHING, with_bounds

Row = TypeVar("Row")
ReadRow = TypeVar("ReadRow", contravariant=True)
"""Row of a column, contravariant: a column of any run may be part of a table of finished runs, too."""


@dataclass(frozen=True)
class Column(Generic[ReadRow]):
    """One column of a table: its text for people, and its number for spreadsheets."""

    heading: str = ""
    """Heading for people; empty where it is for spreadsheets alone."""
    text: Callable[[ReadRow], str] | None = None
    """Returns the text of a row's cell; None where a table is made of texts already, or for spreadsheets alone."""
    about: str = ""
    """Explanation of the heading."""
    drop: int = 0
    """Priority on a narrow terminal: the column with the largest number is left out first, 0 never."""
    left: bool = False
    """Whether it is aligned to the left, as words are; numbers are aligned to the right."""
    folds: bool = False
    """Whether its texts are sentences, which a terminal may fold into several lines."""
    shown: Callable[[Sequence[ReadRow]], bool] | None = None
    """Tells whether to show it in a table of these rows; None where it always is."""
    csv: str = ""
    """Heading in a spreadsheet, with the unit; empty where a spreadsheet lacks it."""
    number: Callable[[ReadRow], object] | None = None
    """Returns a row's value for a spreadsheet; None where that is the row's attribute `csv`."""
    bounds: bool = False
    """Whether the value has a lower and an upper bound, which are two more columns of a spreadsheet."""


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    columns: Sequence[Column[Any]]
    rows: list[list[str]]
    caption: str = ""
    marks: list[str] = field(default_factory=list)
    """CSS class of each row on a page; empty where no row has one."""

    @property
    def headings(self) -> list[str]:
        """The headings of the columns, for people."""
        return [column.heading for column in self.columns]


def attribute(
    csv: str,
    heading: str = "",
    write: Callable[[Any], str] | None = None,
    about: str = "",
    *,
    optional: bool = False,
    **options: Any,
) -> Column[Any]:
    """Return the column of the rows' attribute `csv`, formatted by `write`; a dash where it is None.

    Without `write` it is for spreadsheets alone, with `optional` it is hidden where all texts are dashes. `options` are
    other fields of `Column`; `number` takes the place of the attribute.
    """
    read = options.get("number") or attrgetter(csv)

    def text(row: Any) -> str:
        value = read(row)
        return write(value) if write and value is not None else NOTHING

    if optional:
        options["shown"] = lambda rows: any(text(row) != NOTHING for row in rows)
    return Column(heading, text if write else None, about, csv=csv, **options)


def estimated(csv: str, heading: str, write: Callable[[float], str], about: str = "", *, drop: int = 0) -> Column[Any]:
    """Return the column of the rows' estimate `csv`, value and bounds by `write`; hidden where no row has one."""
    return attribute(
        *(csv, heading, lambda estimate: with_bounds(estimate, write), about), optional=True, drop=drop, bounds=True
    )


def tabulate(
    columns: Iterable[Column[Row]], rows: Sequence[Row], caption: str = "", mark: Callable[[Row], str] | None = None
) -> Table:
    """Return the table of the rows for people, without columns that say nothing; `mark` returns a row's CSS class."""
    shown = [column for column in columns if column.text and (column.shown is None or column.shown(rows))]
    texts = [[column.text(row) for column in shown if column.text] for row in rows]
    return Table(shown, texts, caption, [mark(row) for row in rows] if mark else [])


def words_table(headings: Iterable[str], rows: list[list[str]], caption: str = "") -> Table:
    """Return a table of texts, all aligned to the left."""
    return Table([Column(heading, left=True) for heading in headings], rows, caption)


def numbers(columns: Iterable[Column[Row]], rows: Iterable[Row]) -> Table:
    """Return the table of the rows for a spreadsheet: all columns with a `csv` heading, in full precision."""
    numeric = [column for column in columns if column.csv]
    headings = [
        f"{column.csv}{end}" for column in numeric for end in (("", "_low", "_high") if column.bounds else ("",))
    ]
    texts = [[_plain_text(value) for column in numeric for value in _values(column, row)] for row in rows]
    return Table([Column(heading) for heading in headings], texts)


def fields(*names: str) -> list[Column[Any]]:
    """Return columns for spreadsheets alone, one for each named attribute of a row."""
    return [attribute(name) for name in names]


def _values(column: Column[Row], row: Row) -> list[object]:
    """Return a row's value in a column, with its bounds where the column has them and they are known."""
    value: Any = column.number(row) if column.number else getattr(row, column.csv)
    if not column.bounds:
        return [value]
    if value is None:
        return [None] * 3
    return [value.value, *([value.low, value.high] if getattr(value, "is_known", True) else [None] * 2)]


def _plain_text(value: object) -> str:
    """Return a value as text for a spreadsheet: numbers in full precision, empty where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(value) if isinstance(value, float) else str(value)


def as_markdown(table: Table) -> str:
    """Return a table in Markdown; columns of numbers are aligned to the right."""
    rule = ["---" if column.left else "---:" for column in table.columns]
    lines = [table.headings, rule, *table.rows]
    return "".join(f"| {' | '.join(markdown_text(cell) for cell in line)} |\n" for line in lines)


def markdown_text(text: str) -> str:
    """Put a text in one line and escape characters that have a meaning in Markdown."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", one_line(text))


def as_csv(table: Table) -> str:
    """Return a table as CSV, one line per row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.headings)
    writer.writerows([[_csv_text(one_line(cell)) for cell in row] for row in table.rows])
    return text.getvalue()


def _csv_text(cell: str) -> str:
    """Put a quote before a text that a spreadsheet would take for a formula; numbers stay as they are."""
    if not cell.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def one_line(text: str) -> str:
    """Replace line breaks and runs of blanks by single blanks."""
    return " ".join(text.split())
