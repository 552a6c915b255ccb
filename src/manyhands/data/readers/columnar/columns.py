"""Columns of typed tables as tensors: features in one matrix, lists of one length, texts, and targets."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.data.folds import Ints
from manyhands.data.memory import check_size
from manyhands.data.readers.columnar.table import RowGroup, TypedTable
from manyhands.data.readers.labels import class_names, class_numbers
from manyhands.data.readers.words import WORDS, check_words, hashed
from manyhands.errors import UserError, check, listed
from manyhands.replica.nested import Nested

Array = np.ndarray[Any, Any]

FEATURES = "features"
"""Name of the matrix of numeric columns, where there are columns of lists beside it."""
FEWER = "choose columns with features=a|b"
ONE_LENGTH = "give lists of one length, or collate the rows of manyhands.parquet() yourself"


class Wanted(NamedTuple):
    """The columns of a table that are inputs, and those that are targets."""

    labels: list[str]
    features: list[str]
    text: str | None = None
    words: int = WORDS

    @property
    def all(self) -> list[str]:
        """Return the names of all columns that are read."""
        return [*self.labels, *([self.text] if self.text else self.features)]


class Read(NamedTuple):
    """The inputs of a table's rows, and the values of its label columns."""

    x: Nested
    y: list[Array]


def choose(
    table: TypedTable, owner: str, label: str | None, text: str | None, words: int | None, features: str | None
) -> Wanted:
    """Return the columns that the options of a source name; by default all but the labels are features."""
    if label is None:
        raise UserError(f"{owner} needs label=COLUMN, one of the columns of '{table.path}': {listed(table.names)}")
    check(words is None or text is not None, f"words={words} of {owner} needs text=COLUMN, whose words are hashed")
    check(not (text and features), f"give {owner} text=COLUMN or features=COLUMN|COLUMN, not both")
    labels = names_in(label)
    inputs = names_in(features) if features else [name for name in table.names if name not in labels]
    for name in (*labels, *([text] if text else inputs)):
        table.type_of(name)
    twice = next((name for name in (*inputs, text) if name in labels), None)
    check(twice is None, f"column '{twice}' of '{table.path}' is a label, so it cannot be an input as well")
    check(bool(inputs), f"'{table.path}' has no column but the labels {listed(labels)}")
    return Wanted(labels, inputs, text, WORDS if words is None else words)


def names_in(text: str) -> list[str]:
    """Return the names of columns in a list such as `a|b`, none of them twice."""
    names = [name.strip() for name in text.split("|")]
    twice = next((name for name in names if names.count(name) > 1), None)
    check(twice is None, f"column '{twice}' is given twice in '{text}'")
    return names


def read_columns(table: TypedTable, wanted: Wanted, owner: str) -> Read:
    """Read the wanted columns of all rows, a piece at a time; the memory they take is checked before."""
    if wanted.text:
        return _read_text(table, wanted, wanted.text, owner)
    numbers = [name for name in wanted.features if not is_list(table.type_of(name))]
    lists = [name for name in wanted.features if name not in numbers]
    for name in numbers:
        _check_number(table, name, "; for a column of text add text={name}, to leave it out features=COLUMN|COLUMN")
    dtype = _dtype([table.type_of(name) for name in numbers])
    check_size(table.rows * len(numbers), dtype.itemsize, f"'{table.path}'", FEWER)
    matrix, start = np.empty((table.rows, len(numbers)), dtype), 0
    columns: dict[str, Array] = {}
    labels: list[list[Array]] = [[] for _ in wanted.labels]
    for piece in table.pieces(wanted.all):
        stop = start + piece.table.num_rows
        if start == stop:
            continue
        for place, name in enumerate(numbers):
            matrix[start:stop, place] = _numbers(piece, name)
        for name in lists:
            _fill(columns, name, as_rows(piece, name), start, table)
        for values, name in zip(labels, wanted.labels, strict=True):
            values.append(_label(piece, name))
        start = stop
    x = {FEATURES: torch.from_numpy(matrix)} if numbers else {}
    x |= {name: torch.from_numpy(columns[name]) for name in lists}
    return Read(next(iter(x.values())) if len(x) == 1 else x, [np.concatenate(values) for values in labels])


def _fill(columns: dict[str, Array], name: str, rows: Array, start: int, table: TypedTable) -> None:
    """Copy the lists of consecutive rows to their place in the array of the whole column."""
    if name not in columns:
        values = table.rows * math.prod(rows.shape[1:])
        check_size(values, rows.itemsize, f"column '{name}' of '{table.path}'", FEWER)
        columns[name] = np.empty((table.rows, *rows.shape[1:]), rows.dtype)
    whole = columns[name]
    check(
        whole.shape[1:] == rows.shape[1:],
        f"column '{name}' of '{table.path}' has lists of the shapes {whole.shape[1:]} and {rows.shape[1:]}; "
        f"{ONE_LENGTH}",
    )
    whole[start : start + len(rows)] = rows


def targets(read: Sequence[Read], wanted: Wanted, table: TypedTable) -> tuple[list[Tensor], int]:
    """Return the targets of every part, and the number of classes; 0 where they are numbers.

    One label column of whole numbers, truth values or texts gives classes; one of fractions numbers of the shape
    (rows, 1); several columns one fraction each.
    """
    whole = [np.concatenate([part.y[i] for part in read]) for i in range(len(wanted.labels))]
    what = f"column '{wanted.labels[0]}' of '{table.path}'"
    if len(whole) == 1 and whole[0].dtype.kind in "OUib":
        numbers, classes = _classes(read[0].y[0], [part.y[0] for part in read[1:]], what)
        return [torch.from_numpy(part) for part in numbers], classes
    if len(whole) == 1 and whole[0].ndim > 1:
        return [torch.from_numpy(part.y[0]) for part in read], 0
    for name, values in zip(wanted.labels, whole, strict=True):
        check(
            values.dtype.kind in "fib" and values.ndim == 1,
            f"column '{name}' of '{table.path}' holds no numbers, but of several labels each must be a number",
        )
    dtype = np.float32 if all(values.dtype.kind != "f" for values in whole) else np.result_type(*whole)
    return [torch.from_numpy(np.stack(part.y, axis=1).astype(dtype)) for part in read], 0


def labels_of_rows(pieces: Sequence[RowGroup], name: str, what: str) -> tuple[list[Ints] | None, int]:
    """Return the label of each row of all pieces, and the number of classes, 0 where it is not known.

    Texts become numbers, whole numbers stay; other columns hold no labels.
    """
    kind = pieces[0].table.schema.field(name).type
    if is_list(kind) or not (is_text(kind) or is_number(kind)):
        return None, 0
    values = [_label(piece, name) for piece in pieces]
    if values[0].dtype.kind == "O":
        return _classes(values[0], values[1:], what)
    return (None if values[0].dtype.kind == "f" else [part.astype(np.int64) for part in values]), 0


def is_list(kind: Any) -> bool:
    """Tell whether a pyarrow type is one of lists, or of tensors, which are stored as lists."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def as_rows(piece: RowGroup, name: str) -> Array:
    """Return a column of lists as an array with a row for each; lists may be nested, but must have one length."""
    from pyarrow import types

    array, shape = piece.column(name), [piece.table.num_rows]
    tensor_shape = getattr(array.type, "shape", None)  # of pyarrow's fixed_shape_tensor
    array = getattr(array, "storage", array)
    while is_list(array.type):
        if types.is_fixed_size_list(array.type):
            length = array.type.list_size
        else:
            lengths = np.asarray(array.value_lengths())
            length = int(lengths[0]) if len(lengths) else 0
            uneven = np.flatnonzero(lengths != length)
            if len(uneven):
                row = int(uneven[0]) // max(1, math.prod(shape[1:]))
                raise UserError(
                    f"{piece.place(name, row)} is a list of {lengths[uneven[0]]} values, but the first has {length}; "
                    f"{ONE_LENGTH}"
                )
        shape.append(length)
        array = array.flatten()
        check(not array.null_count, f"column '{name}' of '{piece.path}' has a list with a missing value")
    values = _values(array, f"column '{name}' of '{piece.path}'")
    _check_finite(values.reshape(shape[0], -1), piece, name)
    return values.reshape(shape[0], *(tensor_shape or shape[1:]))


def _read_text(table: TypedTable, wanted: Wanted, text: str, owner: str) -> Read:
    check(
        is_text(table.type_of(text)),
        f"column '{text}' of '{table.path}' holds {table.type_of(text)}, not text",
    )
    check_words(wanted.words, table.rows, owner, f"'{table.path}'")
    x, start = torch.empty(table.rows, wanted.words, dtype=torch.uint8), 0
    labels: list[list[Array]] = [[] for _ in wanted.labels]
    for piece in table.pieces(wanted.all):
        texts = piece.column(text).to_pylist()
        if not texts:
            continue
        x[start : start + len(texts)] = hashed(texts, wanted.words)
        start += len(texts)
        for values, name in zip(labels, wanted.labels, strict=True):
            values.append(_label(piece, name))
    return Read(x, [np.concatenate(values) for values in labels])


def _label(piece: RowGroup, name: str) -> Array:
    kind = piece.table.schema.field(name).type
    if is_list(kind):
        return as_rows(piece, name)
    array = piece.column(name)
    if is_text(array.type):
        return np.array(array.to_pylist(), object)
    values = _values(array, f"column '{name}' of '{piece.path}'")
    _check_finite(values[:, None], piece, name)
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def _classes(train: Array, others: Sequence[Array], what: str) -> tuple[list[Ints], int]:
    """Return the class of each row of all parts; the classes are those of the first part."""
    if train.dtype.kind != "O":
        train, others = train.astype(np.int64), [other.astype(np.int64) for other in others]
        train, *others = (values.astype(str).astype(object) for values in (train, *others))
    names = class_names(train.tolist(), what)
    for other in others:
        new = sorted(set(other.tolist()) - set(names))
        check(not new, f"{what} has the label '{new[0] if new else ''}' in the test rows, but in no row to train on")
    return [class_numbers(values.tolist(), names) for values in (train, *others)], len(names)


def _numbers(piece: RowGroup, name: str) -> Array:
    values = _values(piece.column(name), f"column '{name}' of '{piece.path}'")
    _check_finite(values[:, None], piece, name)
    return values


def _values(array: Any, what: str) -> Array:
    """Return a pyarrow array of numbers as numpy's, which shares its memory where it can."""
    import pyarrow as pa

    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    check(is_number(array.type), f"{what} holds {array.type}, which are no numbers")
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _check_finite(values: Array, piece: RowGroup, name: str) -> None:
    if values.dtype.kind != "f":
        return
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise UserError(f"{piece.place(name, int(bad[0]))} is no finite number")


def _check_number(table: TypedTable, name: str, hint: str) -> None:
    kind = table.type_of(name)
    check(
        is_number(kind),
        f"column '{name}' of '{table.path}' holds {kind}, which are no numbers{hint.format(name=name)}",
    )


def is_number(kind: Any) -> bool:
    """Tell whether a pyarrow type is one of numbers or truth values."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def is_text(kind: Any) -> bool:
    """Tell whether a pyarrow type is one of texts."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _dtype(kinds: Sequence[Any]) -> np.dtype[Any]:
    """Return the type of the matrix: of single precision where that holds every value of all columns."""
    from pyarrow import types

    def fits(kind: Any) -> bool:
        narrow = types.is_float32(kind) or types.is_float16(kind) or types.is_boolean(kind)
        return bool(narrow or (types.is_integer(kind) and kind.bit_width <= 16))

    return np.dtype(np.float32 if all(map(fits, kinds)) else np.float64)
