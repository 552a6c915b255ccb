"""Labels of any kind as class numbers, and the pick of the rows that are held out for the test."""

import re
import textwrap
from collections.abc import Sequence

import numpy as np

from manyhands.data.folds import Ints, hold_out
from manyhands.errors import check


def class_names(labels: Sequence[str], what: str) -> list[str]:
    """Return the different labels of `what` in the order of their numbers: as whole numbers, or else as text."""
    different = set(labels)
    check(
        len(different) > 1,
        f"every row of {what} is '{shorten(labels[0])}', but there must be at least two classes",
    )
    whole = all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in different)
    return sorted(different, key=lambda label: (int(label) if whole else 0, label))


def class_numbers(labels: Sequence[str], names: Sequence[str]) -> Ints:
    """Return the class of every label, all of which are among `names`."""
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[label] for label in labels], np.int64)


def hold_out_any(labels: Ints | None, rows: int, what: str) -> tuple[Ints, Ints]:
    """Return rows to train on and rows to test on, evenly over the labels where several rows have the same."""
    check(rows >= 2, f"{what} has {rows} rows, but needs at least two, since one sixth is held out for the test")
    numbers = np.zeros(rows, np.int64) if labels is None else np.unique(labels, return_inverse=True)[1]
    different = int(numbers.max()) + 1
    return hold_out(numbers, different, what) if different < rows else hold_out(np.zeros_like(numbers), 1, what)


def shuffled(n: int) -> Ints:
    """Return the one order in which rows of files are taken: files are often sorted by their label."""
    return np.random.Generator(np.random.PCG64(0)).permutation(n)


def shorten(cell: str) -> str:
    """Return a cell as part of a sentence: on one line, and not too long."""
    return textwrap.shorten(cell, 60, placeholder="…")
