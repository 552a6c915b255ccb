"""Samples in memory: how rows are kept, and how a batch of them is gathered."""

import numbers
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from manyhands.data.arrays import as_tensors, named_tensors
from manyhands.data.samples.split import SampleSplit
from manyhands.errors import check, kind_of
from manyhands.replica.nested import Nested, map_tensors, with_floats
from manyhands.spec import with_field_docs

COUNT = -1
"""In the place of a number of classes: count them."""
MAX_CLASSES = 1_000_000
"""Whole numbers from here on are no classes."""


@final
@with_field_docs
@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Inputs and targets, kept as they were read and converted only when a batch is gathered."""

    x: Nested
    """The stored inputs, one sample a row: (rows, features), (rows, channels, height, width), …; or a tuple or a dict
    of these, which the network gets as its arguments. A numpy array is taken as a tensor."""
    y: Nested = None
    """The target of each row: its class, a whole number from 0 up, kept as int64; or any numbers, of several dimensions
    or in a tuple or a dict; None where there are no targets."""
    scale: float = 1.0
    """Factor of the inputs when gathered, such as 1/255 for bytes."""
    zoom: int = 1
    """How often each pixel is repeated along both sides of an image."""
    copies: int = 1
    """How often the rows are repeated; sample i is row i % rows, and no copy is made."""
    picks: Tensor | None = None
    """In a view of some rows, the number of each row's stored input; `y` has the targets of the view."""
    as_stored: bool = False
    """Whether whole numbers stay whole, such as those of an embedding; otherwise a single array of inputs becomes
    fractions. In a tuple or a dict they stay."""

    def __post_init__(self) -> None:
        x, y = as_tensors(self.x, "the inputs of a split"), as_tensors(_whole(self.y), "the labels of a split")
        rows = _rows_of_inputs(x, "the inputs of a split")
        inputs = rows if self.picks is None else len(self.picks)
        for name, t in named_tensors(y, "the labels of a split"):
            check(t.ndim >= 1, f"{name} must have a row for each sample, but they are a single number")
            check(inputs == len(t), f"a split has {inputs} inputs but {len(t)} labels")
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", map_tensors(_as_target, y))
        assert self.copies >= 1, "a split has at least one copy of its rows"
        assert self.zoom == 1 or (isinstance(x, Tensor) and x.ndim == 4), "only images are zoomed"

    def __len__(self) -> int:
        return self.num_rows * self.copies

    @property
    def num_rows(self) -> int:
        """Return the number of rows, of which a repeated one counts once."""
        return len(self._any) if self.picks is None else len(self.picks)

    @property
    def shape(self) -> Any:
        """Return the shape of one sample as the network sees it; of inputs in a dict, a dict of shapes."""
        if self.zoom == 1:
            return map_tensors(lambda t: tuple(t.shape[1:]), self.x)
        channels, height, width = self.x.shape[1:]
        return channels, height * self.zoom, width * self.zoom

    @property
    def labels(self) -> Tensor | None:
        """Return the target of each row where they are whole numbers, such as classes; None for any others."""
        y = self.y
        return y if isinstance(y, Tensor) and y.ndim == 1 and y.dtype == torch.int64 else None

    def batch(self, indices: Tensor | slice, dtype: torch.dtype, epoch: int = 0) -> tuple[Nested, Nested]:
        """Return the inputs and targets of `indices`; those of a slice may be views, which must not be written to.

        They are the same in every epoch.
        """
        x, y = self._view(indices) if isinstance(indices, slice) else self._gather(indices)
        x = with_floats(x, dtype) if self.as_stored or not isinstance(x, Tensor) else self._scaled(x, dtype)
        if self.zoom > 1:
            x = x.repeat_interleave(self.zoom, dim=3).repeat_interleave(self.zoom, dim=2)
        return x, with_floats(y, dtype)

    def to(self, device: torch.device | str) -> "Split":
        """Return the same samples on another device."""
        picks = None if self.picks is None else self.picks.to(device)
        x, y = (map_tensors(lambda t: t.to(device), part) for part in (self.x, self.y))
        return replace(self, x=x, y=y, picks=picks)

    def take(self, n: int) -> "Split":
        """Return the first n rows."""
        y = map_tensors(lambda t: t[:n], self.y)
        if self.picks is not None:
            return replace(self, y=y, picks=self.picks[:n])
        return replace(self, x=map_tensors(lambda t: t[:n], self.x), y=y)

    def rows(self, indices: Tensor) -> "Split":
        """Return a view of the rows `indices`, in their order: the inputs are shared, not copied."""
        indices = indices.to(self._any.device)
        y = map_tensors(lambda t: t[indices], self.y)
        return replace(self, y=y, picks=indices if self.picks is None else self.picks[indices])

    @property
    def _any(self) -> Tensor:
        """The first tensor of the inputs."""
        if isinstance(self.x, Tensor):
            return self.x
        return next(t for _, t in named_tensors(self.x, ""))

    def _gather(self, indices: Tensor) -> tuple[Nested, Nested]:
        if self.copies > 1:
            indices = indices % self.num_rows
        indices = indices.to(self._any.device)
        stored = indices if self.picks is None else self.picks.index_select(0, indices)
        if isinstance(self.x, Tensor) and isinstance(self.y, Tensor):
            return self.x.index_select(0, stored), self.y.index_select(0, indices)
        x = map_tensors(lambda t: t.index_select(0, stored), self.x)
        return x, map_tensors(lambda t: t.index_select(0, indices), self.y)

    def _view(self, samples: slice) -> tuple[Nested, Nested]:
        start, stop, step = samples.indices(len(self))
        assert step == 1, "a batch is contiguous or a list of indices"
        rows, stop = max(1, self.num_rows), max(start, stop)
        copy = start - start % rows
        if stop > copy + rows or self.picks is not None:
            return self._gather(torch.arange(start, stop))
        here = slice(start - copy, stop - copy)
        return map_tensors(lambda t: t[here].contiguous(), self.x), map_tensors(lambda t: t[here], self.y)

    def _scaled(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the inputs as the network takes them; a function of its own, since paper 000 has a row for it."""
        # Multiplying in place after the conversion takes the time of one fused operation, and does not depend on
        # torch's default dtype; the copy keeps a view of float data from being written to.
        return x.to(dtype) if self.scale == 1 else x.to(dtype, copy=True).mul_(self.scale)


AnySplit = Split | SampleSplit
"""Samples in memory, or ones that are read one by one."""


@final
@with_field_docs
@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """Samples to learn from, samples to test on, and the number of classes, if the targets are classes."""

    name: str
    """Its name in errors and tables."""
    train: AnySplit
    """Samples to train on."""
    test: AnySplit
    """Samples to test on, of the same shape."""
    classes: int = COUNT
    """How many classes there are, labels running from 0 to one less; 0 where the targets are no classes. They are
    counted if this is not given: where every row has one whole number from 0 up."""
    notes: tuple[str, ...] = ()
    """Sentences that a user should read before the data is trained on, such as that a DataLoader's order is ignored."""

    def __post_init__(self) -> None:
        check(
            isinstance(self.name, str),
            f"the name of a Dataset must be a text, got {kind_of(self.name)}; "
            "give manyhands.Dataset(name, Split(x, y), Split(test_x, test_y), classes)",
        )
        for what, split in (("training", self.train), ("test", self.test)):
            check(
                isinstance(split, AnySplit),
                f"the {what} split of {self.name} must be a manyhands.Split(x, y), got {kind_of(split)}",
            )
        check(
            isinstance(self.classes, numbers.Integral) and self.classes >= COUNT,
            f"the classes of {self.name} must be a whole number of at least 1, or 0 where targets are no classes, "
            f"got {self.classes!r}",
        )
        for part, what in (("train", "training"), ("test", "test")):
            split = getattr(self, part)
            if isinstance(split, SampleSplit) and not split.name:
                object.__setattr__(self, part, replace(split, name=f"the {what} data of {self.name}"))
        if self.classes == COUNT:
            object.__setattr__(self, "classes", count_classes(self.train.labels, self.test.labels))
        for what, split in (("training", self.train), ("test", self.test)):
            if self.classes and isinstance(split, Split):
                _check_classes(split.y, f"the {what} labels of {self.name}")
        if isinstance(self.train, Split) and isinstance(self.test, Split):
            _check_alike(self.name, self.train, self.test)

    @property
    def shape(self) -> Any:
        """Return the shape of one sample as the network sees it; of inputs in a dict, a dict of shapes."""
        return self.train.shape

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the same samples on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


def count_classes(*labels: Tensor | None) -> int:
    """Return the number of classes; 0 unless all labels are known, and whole numbers from 0 up."""
    present = [part for part in labels if part is not None and len(part)]
    if len(present) < len(labels) or min(int(part.min()) for part in present) < 0:
        return 0
    most = 1 + max(int(part.max()) for part in present)
    return most if most <= MAX_CLASSES else 0


def _check_classes(y: Nested, name: str) -> None:
    """Refuse targets of another kind where a number of classes is given."""
    check(isinstance(y, Tensor), f"{name} must be one tensor, since classes are given, but they are {kind_of(y)}")
    check(
        y.ndim == 1,
        f"{name} must have one dimension, one class a row, but their shape is {tuple(y.shape)}; "
        "without a number of classes, targets may be anything",
    )
    check(
        not (y.is_floating_point() or y.is_complex()),
        f"{name} must be whole numbers, the classes, got {str(y.dtype).removeprefix('torch.')}; "
        "without a number of classes, targets may be anything",
    )


def _check_alike(name: str, train: Split, test: Split) -> None:
    """Refuse a test split whose samples are not like those to train on."""
    check(
        train.shape == test.shape,
        f"a training sample of {name} has the shape {train.shape}, but a test sample has {test.shape}",
    )
    kinds = [_kind(split) for split in (train, test)]
    check(
        kinds[0] == kinds[1],
        f"the training inputs of {name} are {kinds[0]}, but the test inputs are {kinds[1]}; give both the same type",
    )


def _rows_of_inputs(x: Nested, name: str) -> int:
    """Return the number of rows that all tensors have."""
    tensors = list(named_tensors(x, name))
    check(bool(tensors), f"{name} hold no tensor; give one with a row for each sample, or a tuple or dict of such")
    first_name, first = tensors[0]
    for part, t in tensors:
        check(t.ndim >= 1, f"{part} must have a row for each sample, but they are a single number")
        check(len(t) == len(first), f"{part} have {len(t)} rows, but {first_name} have {len(first)}")
    return len(first)


def _whole(labels: Any) -> Any:
    """Convert numpy's unsigned integers, most of which torch does not know, to int64."""
    return labels.astype(np.int64) if isinstance(labels, np.ndarray) and labels.dtype.kind == "u" else labels


def _as_target(y: Tensor) -> Tensor:
    """Return whole numbers as int64, which torch's losses take; several truth values a row stay as they are."""
    whole = not (y.is_floating_point() or y.is_complex() or (y.dtype == torch.bool and y.ndim > 1))
    return y.to(torch.int64) if whole else y


def _kind(split: Split) -> str:
    """Return in words how the inputs are stored, as far as it changes the network's input."""
    kinds = [("fractions" if t.is_floating_point() else "whole numbers") for _, t in named_tensors(split.x, "")]
    stored = " and ".join(kinds)
    return stored if split.scale == 1 else f"{stored} that are multiplied by {split.scale:g}"
