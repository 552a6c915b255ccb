"""Rows of typed tables as samples: dicts of their values, which an own function may decode or collate."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from manyhands.data.arrays import as_tensor
from manyhands.data.readers.columnar.columns import as_rows, is_list, is_number, is_text, labels_of_rows
from manyhands.data.readers.columnar.parquet import open_parquet
from manyhands.data.readers.columnar.table import RowGroup, TypedTable, in_memory
from manyhands.data.readers.labels import hold_out_any, shuffled
from manyhands.data.samples.split import SampleSplit
from manyhands.data.split import COUNT, Dataset
from manyhands.errors import check, kind_of, listed

Row = dict[str, Any]
Decode = Callable[[Row], Row]


def parquet(
    path: str | Path,
    *,
    inputs: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    decode: Decode | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Dataset:
    """Return the rows of a Parquet file or folder as samples (input, target), to decode or collate them yourself.

    A row is a dict of its columns: numbers and lists of numbers as tensors, other values as Python's. `decode` gets it,
    with None for a missing value, and returns such a dict. The input is the value of `inputs`, or a dict where that is
    several names; by default all but the target. The target is a value or a dict alike; without one the sample is the
    input alone. A text as the target becomes the number of its class, unless there is a `decode`. Without files for the
    test a sixth is held out.
    """
    train, test = open_parquet(Path(path).expanduser())
    targets = [target] if isinstance(target, str) else list(target or [])
    wanted = None if inputs is None or decode else [*([inputs] if isinstance(inputs, str) else inputs), *targets]
    columns = train.names if wanted is None else wanted
    _check_columns(train, columns, [] if decode else targets, plain=decode is None and collate is None)
    tables = [in_memory(part, columns) for part in (train, test) if part is not None]
    labels, classes = None, COUNT
    if isinstance(target, str) and decode is None:
        pieces = [RowGroup(train.path, 0, table.select([target])) for table in tables]
        labels, classes = labels_of_rows(pieces, target, f"column '{target}' of '{train.path}'")
    picks = [shuffled(len(table)) for table in tables]
    if test is None:
        picks = list(hold_out_any(None if labels is None else labels[0], train.rows, f"'{path}'"))
        tables, labels = tables * 2, labels and labels * 2

    def split(part: int) -> SampleSplit:
        table, y = tables[part], None if labels is None else labels[part]
        rows = RowSamples(
            lambda row: table.slice(row, 1), Path(path), picks[part], inputs, target, decode=decode, labels=y
        )
        return SampleSplit(rows, collate, f"'{path}'")

    return Dataset("parquet", split(0), split(1), classes if classes else COUNT)


@final
class RowSamples:
    """Some rows of a table as a map-style dataset."""

    def __init__(
        self,
        read: Callable[[int], Any],
        path: Path,
        picks: np.ndarray[Any, np.dtype[np.int64]],
        inputs: str | Sequence[str] | None,
        target: str | Sequence[str] | None,
        *,
        decode: Decode | None = None,
        labels: np.ndarray[Any, np.dtype[np.int64]] | None = None,
    ) -> None:
        self._read, self._path, self._picks = read, path, picks
        self._inputs, self._target, self._decode = inputs, target, decode
        self.labels: Tensor | None = None if labels is None else torch.from_numpy(labels[picks])

    def __len__(self) -> int:
        return len(self._picks)

    def __getitem__(self, index: int) -> Any:
        number = int(self._picks[index])
        piece = RowGroup(self._path, number, self._read(number))
        may_miss = self._decode is not None
        row = {name: value_of(piece, name, may_miss=may_miss) for name in piece.table.column_names}
        if self._decode is not None:
            row = self._decode(row)
            check(
                isinstance(row, dict),
                f"decode must return a dict of a row's values, but of row {number} of '{self._path}' it returned "
                f"{kind_of(row)}",
            )
        targets = [self._target] if isinstance(self._target, str) else list(self._target or [])
        self._check_names(row, targets, number)
        rest = {name: value for name, value in row.items() if name not in targets}
        x = self._part(row, self._inputs, number) if self._inputs is not None else rest
        if not targets:
            return x
        y = self._part(row, self._target, number)
        return x, y if self.labels is None else self.labels[index]

    def _part(self, row: Row, names: str | Sequence[str] | None, number: int) -> Any:
        self._check_names(row, [names] if isinstance(names, str) else names or [], number)
        return row[names] if isinstance(names, str) else {name: row[name] for name in names or []}

    def _check_names(self, row: Row, names: Sequence[str], number: int) -> None:
        missing = next((name for name in names if name not in row), None)
        check(
            missing is None,
            f"row {number} of '{self._path}' has no '{missing}' after decode; it has {listed(list(row))}",
        )


def value_of(piece: RowGroup, name: str, *, may_miss: bool = False) -> Any:
    """Return the value of a column in the only row of a piece: numbers as tensors, others as Python's.

    A missing value is None if it `may_miss`, and refused otherwise.
    """
    if may_miss and piece.table.column(name).null_count:
        return None
    kind = piece.table.schema.field(name).type
    if is_list(kind) and is_value(kind):
        return torch.from_numpy(as_rows(piece, name)[0].copy())
    array = piece.column(name)
    if is_number(array.type):
        return as_tensor(array.to_numpy(zero_copy_only=False).copy(), f"column '{name}'")[0]
    return array[0].as_py()


def is_value(kind: Any) -> bool:
    """Tell whether values of a pyarrow type become tensors."""
    while is_list(kind):
        kind = getattr(kind, "storage_type", kind).value_type
    return is_number(kind)


def _check_columns(table: TypedTable, columns: Sequence[str], targets: Sequence[str], *, plain: bool) -> None:
    """Refuse a column that is not there, and in plain rows a column of values that make no tensor."""
    for name in (*columns, *targets):
        kind = table.type_of(name)
        usable = is_value(kind) or (name in targets and is_text(kind))
        check(
            usable or not plain,
            f"column '{name}' of '{table.path}' holds {kind}, which makes no tensor; name the others as inputs, or "
            f"give manyhands.parquet() a function decode or collate",
        )
