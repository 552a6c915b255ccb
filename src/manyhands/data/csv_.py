"""Comma-separated files with a header: a column of text, or columns of numbers, and a column of labels."""

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.data.folds import Ints, hold_out
from manyhands.data.readers.labels import class_names, class_numbers, shorten
from manyhands.data.readers.words import WORDS, check_words, hashed
from manyhands.data.split import Dataset, Split
from manyhands.errors import UserError, check, listed, unknown


class TextTable(NamedTuple):
    """The cells of a file, still as text."""

    file: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]
    """The line of the file on which each row ends."""
    places: dict[str, int]
    """The index of each column by its name, since there may be very many."""

    def column(self, name: str) -> list[str]:
        """Return the stripped cells of the column of this name."""
        if name not in self.places:
            unknown(f"column of '{self.file}' named", name, self.header)
        place = self.places[name]
        return [row[place].strip() for row in self.rows]


def load_csv(
    file: Path,
    *,
    label: str | None = None,
    text: str | None = None,
    words: int | None = None,
) -> Dataset:
    """Load the hashed words of the column `text`, or without one all columns but `label` as numbers.

    Files are often sorted by their label, so the rows are shuffled, always in the same way, and from each class a
    sixth is held out.
    """
    table = _read(file)
    if label is None:
        raise UserError(f"csv needs label=COLUMN, one of the columns of '{file}': {listed(table.header)}")
    check(words is None or text is not None, f"words={words} of csv needs text=COLUMN, whose words are to be hashed")
    check(text != label, f"text and label of csv must be two columns, got '{label}' for both")
    y, classes = _classes(table, label)
    x = _numbers(table, label) if text is None else _hashed(table, text, WORDS if words is None else words)
    for_train, for_test = hold_out(y, classes, f"column '{label}' of '{file}'")
    return Dataset(name="csv", train=_split(x, y, for_train), test=_split(x, y, for_test), classes=classes)


def _read(file: Path) -> TextTable:
    check(os.path.isfile(file), f"there is no file '{file}'")
    reader = csv.reader(io.StringIO(_decoded(file), newline=""), strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"line {reader.line_num} of '{file}' is not comma-separated text: {error}") from None
    check(bool(rows), f"'{file}' is empty; its first line must name the columns")
    header = [" ".join(name.split()) for name in rows[0]]
    _check_header(header, file)
    check(len(rows) > 1, f"'{file}' has a header but no rows")
    for row, line in zip(rows, lines, strict=True):
        check(
            len(row) == len(header),
            f"line {line} of '{file}' has {len(row)} cells, but the header has {len(header)}; "
            f'a cell with a comma must stand in "quotes"',
        )
    return TextTable(file, header, rows[1:], lines[1:], {name: place for place, name in enumerate(header)})


def _decoded(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"'{file}' cannot be read: {error.strerror or error}") from None
    try:
        return data.decode("utf-8-sig")  # a spreadsheet writes a mark in front of the first column's name
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        bad = error.object[error.start]
        raise UserError(f"'{file}' is not UTF-8: line {line} holds the byte 0x{bad:02x}; save it as UTF-8") from None


def _check_header(header: Sequence[str], file: Path) -> None:
    named = [name for name in header if name]
    twice = next((name for name, times in Counter(named).items() if times > 1), None)
    check(twice is None, f"two columns of '{file}' are named '{twice}'; rename one")
    check(
        not all(map(_is_number, named)),
        f"the first line of '{file}' must name the columns, but it is '{shorten(','.join(header))}'",
    )


def _classes(table: TextTable, name: str) -> tuple[Ints, int]:
    """Return the class of each row and the number of classes."""
    labels = _filled(table, name)
    names = class_names(labels, f"column '{name}' of '{table.file}'")
    return class_numbers(labels, names), len(names)


def _hashed(table: TextTable, name: str, words: int) -> Tensor:
    texts = _filled(table, name)
    check_words(words, len(texts), "csv", f"'{table.file}'")
    return hashed(texts, words)


def _numbers(table: TextTable, label: str) -> Tensor:
    names = [name for name in table.header if name != label]
    check(bool(names), f"'{table.file}' has no column but the label '{label}'")
    if "" in names:
        place = 1 + table.header.index("")
        raise UserError(f"column {place} of '{table.file}' has no name, as if it were a row number; name or remove it")
    return torch.from_numpy(np.stack([_floats(table, name) for name in names], axis=1))


def _floats(table: TextTable, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    cells = table.column(name)
    bad = next((i for i, cell in enumerate(cells) if not _is_number(cell)), None)
    if bad is not None:
        raise UserError(
            f"line {table.lines[bad]} of '{table.file}' has '{shorten(cells[bad])}' in column '{name}', which is no "
            f"finite number; for a column of text add text={name}"
        )
    return np.array([float(cell) for cell in cells])  # numpy reads fewer ways to write a number than Python does


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _filled(table: TextTable, name: str) -> list[str]:
    """Return the cells of a column, none of which may be empty."""
    cells = table.column(name)
    if "" in cells:
        raise UserError(f"line {table.lines[cells.index('')]} of '{table.file}' has nothing in column '{name}'")
    return cells


def _split(x: Tensor, y: Ints, rows: Ints) -> Split:
    return Split(x[torch.from_numpy(rows)], torch.from_numpy(y[rows]))
