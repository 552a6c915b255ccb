"""Checks of samples that come from outside, before anything is trained on them."""

from typing import NamedTuple

import torch
from torch import Tensor

from manyhands.data.arrays import named_tensors
from manyhands.data.samples.split import SampleSplit
from manyhands.data.split import MAX_CLASSES, Dataset, Split
from manyhands.errors import UserError, check
from manyhands.replica.nested import Nested, tensors_in

SCAN_VALUES = 1 << 20


class NamedArrays(NamedTuple):
    """Inputs and labels as they were read, and their names in errors."""

    x: Tensor
    y: Tensor
    x_name: str
    y_name: str


def assemble(name: str, train: NamedArrays, test: NamedArrays) -> Dataset:
    """Return a dataset of two parts, which are checked alone and against each other."""
    train, test = _checked(train), _checked(test)
    _check_alike(train, test)
    classes = _num_classes(train)
    row = _first(test.y >= classes)
    if row is not None:
        raise UserError(
            f"row {row} of {test.y_name} is label {test.y[row].item()}, "
            f"but the training labels run from 0 to {classes - 1}"
        )
    train_split, test_split = (Split(part.x, part.y, scale=_scale(part.x)) for part in (train, test))
    return Dataset(name=name, train=train_split, test=test_split, classes=classes)


def check_labels(dataset: Dataset) -> None:
    """Refuse an empty split, a label outside the classes, and labels that are not the samples' targets."""
    for what, split in (("training", dataset.train), ("test", dataset.test)):
        check(len(split) > 0, f"the {what} split of {dataset.name} is empty")
        labels = split.labels
        if labels is None:
            continue
        row = _first((labels < 0) | (labels >= dataset.classes)) if dataset.classes else None
        if row is not None:
            label, last = labels[row].item(), dataset.classes - 1
            raise UserError(f"row {row} of the {what} labels of {dataset.name} is {label}, outside 0 to {last}")
        if isinstance(split, SampleSplit):
            _check_told(split, labels)


def check_finite(dataset: Dataset) -> None:
    """Refuse inputs and targets with a NaN or an infinity; all are read, but of samples on disk a few."""
    for what, split in (("training", dataset.train), ("test", dataset.test)):
        if isinstance(split, SampleSplit):
            if hasattr(split.dataset, "scan_headers"):  # as the readers of this package have
                split.dataset.scan_headers()
            for row in _some(split):
                _check_finite(split.read([row], 0), f"sample {row} of {split.name}")
            continue
        for name, t in named_tensors(split.x, f"the {what} inputs of {dataset.name}"):
            _check_rows_finite(t, name)
        for name, t in named_tensors(split.y, f"the {what} targets of {dataset.name}"):
            _check_rows_finite(t, name)


def unsteady(dataset: Dataset) -> list[str]:
    """Return a sentence about a sample that is another each time it is read, in the same epoch of the same run."""
    for split in (dataset.train, dataset.test):
        if not isinstance(split, SampleSplit):
            continue
        for row in _some(split):
            if not _equal(split.read([row], 0), split.read([row], 0)):
                return [
                    f"sample {row} of {split.name} is another each time it is read, so no two runs will be equal: it "
                    "must draw from the generators of torch, numpy.random and random, which are seeded for each sample"
                ]
    return []


def _equal(nested: Nested, other: Nested) -> bool:
    pairs = zip(tensors_in(nested), tensors_in(other), strict=False)
    return all(a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in pairs)


def _some(split: SampleSplit) -> list[int]:
    """Return a few samples to look at: the first, the middle and the last one."""
    return sorted({0, split.num_rows // 2, split.num_rows - 1})


def _check_told(split: SampleSplit, labels: Tensor) -> None:
    """Refuse labels of a dataset that are not the targets of its samples."""
    for row in _some(split):
        _, y = split.read([row], 0)
        one = isinstance(y, Tensor) and y.numel() == 1
        check(
            not one or y.item() == labels[row].item(),
            f"sample {row} of {split.name} has the target {y.item() if one else y}, but the dataset's labels say "
            f"{labels[row].item()}; without `labels` and `targets` the dataset is taken as it is read",
        )


def _check_finite(nested: Nested, name: str) -> None:
    for t in tensors_in(nested):
        finite = not t.is_floating_point() or bool(torch.isfinite(t).all())
        check(finite, f"{name} holds a NaN or an infinity")


def _checked(part: NamedArrays) -> NamedArrays:
    x, y, x_name, y_name = part
    check(
        x.ndim in (2, 3, 4),
        f"{x_name} must be (rows, features), (rows, height, width) or (rows, channels, height, width), "
        f"but its shape is {tuple(x.shape)}",
    )
    check(y.ndim == 1, f"{y_name} must have one dimension, one label a row, but its shape is {tuple(y.shape)}")
    check(x.numel() > 0, f"{x_name} is empty: its shape is {tuple(x.shape)}")
    check(len(x) == len(y), f"{x_name} has {len(x)} rows but {y_name} has {len(y)}")
    return part._replace(x=x.unsqueeze(1) if x.ndim == 3 else x, y=_whole(y, y_name))


def _whole(y: Tensor, name: str) -> Tensor:
    labels = y.to(torch.int64)
    row = _first(labels != y)
    if row is not None:
        raise UserError(f"{name} must hold whole numbers, but row {row} is {y[row].item()}")
    row = _first(labels < 0)
    if row is not None:
        raise UserError(f"{name} must not hold negative labels, but row {row} is {labels[row].item()}")
    return labels


def _check_alike(train: NamedArrays, test: NamedArrays) -> None:
    check(
        train.x.shape[1:] == test.x.shape[1:],
        f"a sample of {train.x_name} has the shape {tuple(train.x.shape[1:])}, "
        f"but one of {test.x_name} has {tuple(test.x.shape[1:])}",
    )
    check(
        _scale(train.x) == _scale(test.x),
        f"{train.x_name} is {_type(train.x)} and {test.x_name} is {_type(test.x)}; "
        f"bytes are scaled to [0, 1] and other types are not, so give both the same type",
    )


def _num_classes(train: NamedArrays) -> int:
    row = int(train.y.argmax())
    classes = int(train.y[row]) + 1
    check(
        classes <= MAX_CLASSES,
        f"row {row} of {train.y_name} is label {classes - 1}, but labels must be below {MAX_CLASSES}",
    )
    return classes


def _check_rows_finite(x: Tensor, name: str) -> None:
    if not x.is_floating_point() or not len(x):
        return
    step = max(1, SCAN_VALUES // max(1, x[0].numel()))
    for start in range(0, len(x), step):
        row = _first(~torch.isfinite(x[start : start + step]).reshape(min(step, len(x) - start), -1).all(dim=1))
        if row is not None:
            raise UserError(f"row {start + row} of {name} holds a NaN or an infinity")


def _scale(x: Tensor) -> float:
    return 1 / 255 if x.dtype == torch.uint8 else 1.0


def _first(bad: Tensor) -> int | None:
    return int(bad.int().argmax()) if bool(bad.any()) else None


def _type(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
