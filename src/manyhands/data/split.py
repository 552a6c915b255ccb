"""Samples in memory: how rows are kept, and how a batch of them is gathered."""

import numbers
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from manyhands.data.arrays import as_tensor
from manyhands.errors import check, kind_of
from manyhands.spec import with_field_docs


@final
@with_field_docs
@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Inputs and labels, kept as they were read and converted only when a batch is gathered."""

    x: Tensor
    """The stored inputs, one sample a row: (rows, features) or (rows, channels, height, width); a numpy array is
    taken as a tensor."""
    y: Tensor
    """The class of each row, a whole number from 0 up; kept as int64."""
    scale: float = 1.0
    """Factor of the inputs when gathered, such as 1/255 for bytes."""
    zoom: int = 1
    """How often each pixel is repeated along both sides of an image."""
    copies: int = 1
    """How often the rows are repeated; sample i is row i % rows, and no copy is made."""
    picks: Tensor | None = None
    """In a view of some rows, the number of each row's stored input; `y` has the labels of the view."""

    def __post_init__(self) -> None:
        x, y = as_tensor(self.x, "the inputs of a split"), as_tensor(_whole(self.y), "the labels of a split")
        check(x.ndim >= 1, "the inputs of a split must have a row for each sample, but they are a single number")
        check(y.ndim == 1, f"labels must have one dimension, one class a row, but their shape is {tuple(y.shape)}")
        check(
            not (y.is_floating_point() or y.is_complex()),
            f"labels must be whole numbers, the classes, got {str(y.dtype).removeprefix('torch.')}",
        )
        inputs = len(x if self.picks is None else self.picks)
        check(inputs == len(y), f"a split has {inputs} inputs but {len(y)} labels")
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y.to(torch.int64))
        assert self.copies >= 1, "a split has at least one copy of its rows"
        assert self.zoom == 1 or self.x.ndim == 4, "only images are zoomed"

    def __len__(self) -> int:
        return len(self.y) * self.copies

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample as the network sees it."""
        stored = tuple(self.x.shape[1:])
        if self.zoom == 1:
            return stored
        channels, height, width = stored
        return channels, height * self.zoom, width * self.zoom

    def batch(self, indices: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of `indices`; those of a slice may be views, which must not be written to."""
        x, y = self._view(indices) if isinstance(indices, slice) else self._gather(indices)
        x = self._scaled(x, dtype)
        if self.zoom > 1:
            x = x.repeat_interleave(self.zoom, dim=3).repeat_interleave(self.zoom, dim=2)
        return x, y

    def to(self, device: torch.device | str) -> "Split":
        """Return the same samples on another device."""
        picks = None if self.picks is None else self.picks.to(device)
        return replace(self, x=self.x.to(device), y=self.y.to(device), picks=picks)

    def take(self, n: int) -> "Split":
        """Return the first n rows."""
        if self.picks is not None:
            return replace(self, y=self.y[:n], picks=self.picks[:n])
        return replace(self, x=self.x[:n], y=self.y[:n])

    def rows(self, indices: Tensor) -> "Split":
        """Return a view of the rows `indices`, in their order: the inputs are shared, not copied."""
        indices = indices.to(self.y.device)
        return replace(self, y=self.y[indices], picks=indices if self.picks is None else self.picks[indices])

    def _gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        if self.copies > 1:
            indices = indices % len(self.y)
        indices = indices.to(self.x.device)
        stored = indices if self.picks is None else self.picks.index_select(0, indices)
        return self.x.index_select(0, stored), self.y.index_select(0, indices)

    def _view(self, samples: slice) -> tuple[Tensor, Tensor]:
        start, stop, step = samples.indices(len(self))
        assert step == 1, "a batch is contiguous or a list of indices"
        rows, stop = max(1, len(self.y)), max(start, stop)
        copy = start - start % rows
        if stop > copy + rows or self.picks is not None:
            return self._gather(torch.arange(start, stop))
        return self.x[start - copy : stop - copy].contiguous(), self.y[start - copy : stop - copy]

    def _scaled(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the inputs as the network takes them; a function of its own, since paper 000 has a row for it."""
        # Multiplying in place after the conversion takes the time of one fused operation, and does not depend on
        # torch's default dtype; the copy keeps a view of float data from being written to.
        return x.to(dtype) if self.scale == 1 else x.to(dtype, copy=True).mul_(self.scale)


@final
@with_field_docs
@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """Samples to learn from, samples to test on, and the number of classes."""

    name: str
    """Its name in errors and tables."""
    train: Split
    """Samples to train on."""
    test: Split
    """Samples to test on, of the same shape."""
    classes: int
    """How many classes there are; labels run from 0 to one less."""

    def __post_init__(self) -> None:
        check(
            isinstance(self.name, str),
            f"the name of a Dataset must be a text, got {kind_of(self.name)}; "
            "give manyhands.Dataset(name, Split(x, y), Split(test_x, test_y), classes)",
        )
        for what, split in (("training", self.train), ("test", self.test)):
            check(
                isinstance(split, Split),
                f"the {what} split of {self.name} must be a manyhands.Split(x, y), got {kind_of(split)}",
            )
        check(
            isinstance(self.classes, numbers.Integral) and self.classes >= 1,
            f"the classes of {self.name} must be a whole number of at least 1, got {self.classes!r}",
        )
        check(
            self.train.shape == self.test.shape,
            f"a training sample of {self.name} has the shape {self.train.shape}, "
            f"but a test sample has {self.test.shape}",
        )
        kinds = [_kind(split) for split in (self.train, self.test)]
        check(
            kinds[0] == kinds[1],
            f"the training inputs of {self.name} are {kinds[0]}, but the test inputs are {kinds[1]}; "
            "give both the same type",
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample as the network sees it."""
        return self.train.shape

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the same samples on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


def _whole(labels: Any) -> Any:
    """Convert numpy's unsigned integers, most of which torch does not know, to int64."""
    return labels.astype(np.int64) if isinstance(labels, np.ndarray) and labels.dtype.kind == "u" else labels


def _kind(split: Split) -> str:
    """Return in words how the inputs are stored, as far as it changes the network's input."""
    stored = "fractions" if split.x.is_floating_point() else "whole numbers"
    return stored if split.scale == 1 else f"{stored} that are multiplied by {split.scale:g}"
