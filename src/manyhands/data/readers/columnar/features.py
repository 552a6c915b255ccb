"""The sources `parquet:` and `arrow:`: columns of numbers, lists or text as inputs, one or several label columns."""

from pathlib import Path
from typing import Any

import torch

from manyhands.data.readers.columnar.arrow import open_arrow
from manyhands.data.readers.columnar.columns import choose, read_columns, targets
from manyhands.data.readers.columnar.parquet import open_parquet
from manyhands.data.readers.columnar.table import TypedTable
from manyhands.data.readers.labels import hold_out_any, shuffled
from manyhands.data.split import Dataset, Split
from manyhands.errors import check
from manyhands.replica.nested import Nested, map_tensors


def load_parquet(source: Path, **options: Any) -> Dataset:
    """Load some columns of a Parquet file, or of all in a folder."""
    return _loaded("parquet", *open_parquet(source), **options)


def load_arrow(source: Path, **options: Any) -> Dataset:
    """Load some columns of an Arrow file or stream, or of all in a folder."""
    return _loaded("arrow", *open_arrow(source), **options)


def _loaded(
    owner: str,
    train: TypedTable,
    test: TypedTable | None,
    *,
    label: str | None = None,
    text: str | None = None,
    words: int | None = None,
    features: str | None = None,
) -> Dataset:
    """Read both tables; rows are shuffled, always in the same way, and without a test table a sixth is held out.

    The stored rows stay where they are: splits are views of them, so that no second copy is made.
    """
    wanted = choose(train, owner, label, text, words, features)
    read = [read_columns(table, wanted, owner) for table in (train, test) if table is not None]
    ys, classes = targets(read, wanted, train)
    if test is None:
        rows = hold_out_any(ys[0].numpy() if classes else None, train.rows, f"'{train.path}'")
        picks = [torch.from_numpy(part) for part in rows]
        splits = [Split(read[0].x, ys[0][part], picks=part, as_stored=_is_whole(read[0].x)) for part in picks]
    else:
        shapes = [map_tensors(lambda t: tuple(t.shape[1:]), part.x) for part in read]
        check(
            shapes[0] == shapes[1],
            f"a row of '{train.path}' has the shape {shapes[0]}, but one of '{test.path}' has {shapes[1]}",
        )
        picks = [torch.from_numpy(shuffled(len(y))) for y in ys]
        splits = [
            Split(part.x, y[rows], picks=rows, as_stored=_is_whole(part.x))
            for part, y, rows in zip(read, ys, picks, strict=True)
        ]
    many = f"the label '{label}' of '{train.path}' is taken as {classes:,} classes, almost as many as there are rows; "
    notes = (many + "to predict a number, store it as a fraction",) if 2 * classes > train.rows else ()
    return Dataset(owner, splits[0], splits[1], classes, notes)


def _is_whole(x: Nested) -> bool:
    """Tell whether the only input is lists of wide whole numbers, such as those of an embedding."""
    return isinstance(x, torch.Tensor) and x.dtype in (torch.int32, torch.int64)
