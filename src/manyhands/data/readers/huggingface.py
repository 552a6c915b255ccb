"""Datasets of Hugging Face's `datasets`, read from their Arrow tables; the package itself is never imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from manyhands.data.arrays import as_tensor
from manyhands.data.folds import Ints
from manyhands.data.readers.columnar.rows import is_value, value_of
from manyhands.data.readers.columnar.table import RowGroup
from manyhands.data.readers.extras import check_installed
from manyhands.data.readers.labels import hold_out_any
from manyhands.data.readers.parts import TESTS, TRAIN
from manyhands.data.readers.pictures import EncodedImage, as_fractions, decoded
from manyhands.data.samples.split import SampleSplit
from manyhands.data.split import COUNT, Dataset
from manyhands.errors import check, listed

LABELS = ("label", "labels")
"""Columns that are the target."""
PLAIN_FORMATS = (None, "arrow", "numpy", "torch", "pandas", "python", "polars", "tensorflow", "jax")
"""Formats of a dataset that only say how its values are returned; another is a function of the user's."""


def is_huggingface(value: Any) -> bool:
    """Tell whether a value is a `datasets.Dataset`, a `DatasetDict` of them, or a pair (train, test)."""
    if isinstance(value, tuple):
        return len(value) == 2 and all(map(_is_table, value))
    if isinstance(value, dict):
        return bool(value) and all(_is_table(part) for part in value.values())
    return _is_table(value)


def from_huggingface(value: Any, name: str) -> Dataset:
    """Return the rows as samples: the column `label` or `labels` is the target, a dict of the others the input.

    Columns of numbers and of lists of numbers become tensors, images fractions; columns of texts are left out, which a
    note says. A transform that was set with `with_transform` is called instead, for each row alone.
    """
    check_installed("pyarrow", "pyarrow", "arrow", "reading datasets of Hugging Face")
    train, test = _parts(value, name)
    columns, notes = _columns(train, name)
    target = next((column for column in columns if column in LABELS), None)
    for column in columns if test is not None else ():
        check(
            column in test.features,
            f"the test rows of {name} have no column '{column}'; they have {listed(list(test.features))}",
        )
    labels = [_labels(part, target) for part in (train, test) if part is not None]
    check(len(columns) > (target is not None), f"{name} has no column of numbers but the label '{target}'")
    if test is None:
        picks = list(hold_out_any(labels[0], len(train), name))
        parts, labels = [train, train], labels * 2
    else:
        parts, picks = [train, test], [np.arange(len(part)) for part in (train, test)]
    splits = [
        SampleSplit(HubRows(part, columns, target, rows, y, name), name=name)
        for part, rows, y in zip(parts, picks, labels, strict=True)
    ]
    names = getattr(train.features[target], "names", None) if target else None
    classes = len(names) if isinstance(names, list) and names else COUNT
    return Dataset(name, splits[0], splits[1], classes, notes)


@final
class HubRows:
    """Some rows of a `datasets.Dataset` as a map-style dataset."""

    def __init__(
        self, dataset: Any, columns: list[str], target: str | None, picks: Ints, labels: Ints | None, name: str
    ) -> None:
        self._transforms = _has_transform(dataset)
        self._dataset = dataset if self._transforms else dataset.with_format("arrow")
        self._images = {column for column in columns if _is_image(dataset.features[column])}
        self._columns, self._target, self._picks, self._name = columns, target, picks, name
        self.labels: Tensor | None = None if labels is None else torch.from_numpy(labels[picks])

    def __len__(self) -> int:
        return len(self._picks)

    def __getitem__(self, index: int) -> Any:
        number = int(self._picks[index])
        row = self._dataset[number]
        if not self._transforms:
            piece = RowGroup(Path(self._name), number, row.select(self._columns))
            row = {column: self._value(piece, column) for column in self._columns}
        target = next((column for column in row if column in LABELS), None)
        x = {column: value for column, value in row.items() if column != target}
        return x if target is None else (x, row[target])

    def _value(self, piece: RowGroup, column: str) -> Any:
        if column not in self._images:
            return value_of(piece, column)
        stored = piece.column(column)[0].as_py()
        picture = EncodedImage(Path(stored["path"] or ""), data=stored["bytes"])
        if picture.data is not None:
            picture = picture._replace(name=piece.place(column, 0))
        return as_fractions(decoded(picture, "RGB"))


def _is_table(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("features", "with_format", "data", "__len__", "__getitem__"))


def _parts(value: Any, name: str) -> tuple[Any, Any]:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, Mapping):
        return value, None
    check(TRAIN in value, f"{name} has the parts {listed(list(value))}, but needs one named {TRAIN}")
    return value[TRAIN], next((value[part] for part in TESTS if part in value), None)


def _columns(dataset: Any, name: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns of numbers and images, and a note on those that are left out."""
    chosen = _format(dataset).get("columns")
    names = [column for column in dataset.features if chosen is None or column in chosen]
    schema = dataset.data.schema
    if _has_transform(dataset):
        return names, ()
    kept = [column for column in names if _is_image(dataset.features[column]) or is_value(schema.field(column).type)]
    left = [column for column in names if column not in kept]
    target = next((column for column in left if column in LABELS), None)
    check(
        target is None,
        f"column '{target}' of {name} holds {schema.field(target).type if target else ''}, of which no target can be "
        f"made; class_encode_column('{target}') numbers its classes",
    )
    if not left:
        return kept, ()
    what = f"columns {listed(left)} are" if len(left) > 1 else f"column {left[0]} is"
    return kept, (f"{what} left out of {name}, since no tensors can be made of their values: map() them to numbers",)


def _labels(dataset: Any, target: str | None) -> Ints | None:
    """Return the whole numbers of the label column, if it has such; they are read at once."""
    if target is None or _has_transform(dataset) or not hasattr(dataset, "select_columns"):
        return None
    table = dataset.with_format("arrow").select_columns([target])[:]
    if dataset.data.schema.field(target).type.num_fields:
        return None
    values = as_tensor(RowGroup(Path(target), 0, table).column(target).to_numpy(zero_copy_only=False), "labels")
    return None if values.is_floating_point() else values.to(torch.int64).numpy()


def _format(dataset: Any) -> dict[str, Any]:
    form = getattr(dataset, "format", None)
    return form if isinstance(form, dict) else {}


def _has_transform(dataset: Any) -> bool:
    return _format(dataset).get("type") not in PLAIN_FORMATS


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"
