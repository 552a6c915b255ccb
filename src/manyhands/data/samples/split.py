"""Samples that are read one by one when a batch is gathered: any torch-style map dataset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from manyhands.data.samples.collate import Collate, collated, shape_of_row
from manyhands.data.samples.draws import kept_generators, seed_sample
from manyhands.data.samples.labels import labels_of
from manyhands.errors import ManyhandsError, TaskFileFailed, check, kind_of
from manyhands.replica.nested import Nested, map_tensors
from manyhands.spec import with_field_docs


@final
@with_field_docs
@dataclass(frozen=True, eq=False, slots=True)
class SampleSplit:
    """The samples of a map-style dataset: what has `__len__` and `__getitem__`, such as torch's own.

    A sample that is a pair is (input, target); any other is both, as an autoencoder needs it. What `__getitem__` draws
    from the process-wide generators of torch, numpy and Python depends on the seed, the epoch and the sample alone.
    """

    dataset: Any
    """The dataset. If it has `labels`, a whole number for each sample, classes are counted and folds stratified without
    reading any sample; `targets` count as such where there is no `target_transform`."""
    collate: Collate | None = None
    """Makes a batch of a list of samples; torch's `default_collate` if not given. It must treat each sample alone, but
    for padding, so that slices of a batch can be computed by several workers."""
    name: str = ""
    """Its name in errors."""
    seed: int = 0
    """Decides what `__getitem__` draws: the run's seed."""
    copies: int = 1
    """How often the samples are repeated; a repeated one draws other numbers."""
    picks: Tensor | None = None
    """In a view of some samples, the number of each in the dataset."""
    device: str | torch.device = "cpu"
    """Where the tensors of a batch are."""

    def __post_init__(self) -> None:
        sizes = hasattr(self.dataset, "__len__") and hasattr(self.dataset, "__getitem__")
        check(
            sizes,
            f"a SampleSplit needs a dataset with __len__ and __getitem__, got {kind_of(self.dataset)}; "
            "an iterable one is read into memory if a task's data function returns it",
        )

    def __len__(self) -> int:
        return self.num_rows * self.copies

    @property
    def num_rows(self) -> int:
        """Return the number of samples, of which a repeated one counts once."""
        return len(self.dataset) if self.picks is None else len(self.picks)

    @property
    def shape(self) -> Any:
        """Return the shape of the first sample as the network sees it; of inputs in a dict, a dict of shapes."""
        check(len(self) > 0, f"{self.name or 'the data'} is empty")
        return shape_of_row(self.read([0], 0)[0])

    @property
    def labels(self) -> Tensor | None:
        """Return a whole number for each sample, such as its class, if the dataset tells without reading them."""
        labels = labels_of(self.dataset)
        return labels if labels is None or self.picks is None else labels[self.picks]

    def batch(self, indices: Tensor | slice, dtype: torch.dtype, epoch: int = 0) -> tuple[Nested, Nested]:
        """Read the inputs and targets of `indices` as they are in an epoch; fractions become `dtype`."""
        return self.placed(self.read(self.numbers(indices), epoch), dtype)

    def numbers(self, indices: Tensor | slice) -> list[int]:
        """Return the positions that a batch's indices mean."""
        return list(range(*indices.indices(len(self)))) if isinstance(indices, slice) else indices.tolist()

    def read(
        self, numbers: Sequence[int], epoch: int, note: Callable[[int], None] = lambda number: None
    ) -> tuple[Nested, Nested]:
        """Read the samples at some positions and make a batch of them; `note` is told each one's number before."""
        with kept_generators():
            samples = [self._sample(number, epoch, note) for number in numbers]
            return collated(samples, self.collate, [self._stored(n) for n in numbers], self.name or "the data")

    def placed(self, batch: tuple[Nested, Nested], dtype: torch.dtype) -> tuple[Nested, Nested]:
        """Return a batch on the device, with fractions as `dtype`."""
        x, y = batch

        def place(t: Tensor) -> Tensor:
            return t.to(self.device, dtype if t.is_floating_point() else None)

        placed = map_tensors(place, x)
        return placed, placed if y is x else map_tensors(place, y)

    def to(self, device: torch.device | str) -> "SampleSplit":
        """Return the same samples with their batches on another device."""
        return replace(self, device=device)

    def take(self, n: int) -> "SampleSplit":
        """Return the first n samples."""
        return self.rows(torch.arange(min(n, self.num_rows)))

    def rows(self, indices: Tensor) -> "SampleSplit":
        """Return a view of the samples `indices`, in their order."""
        indices = indices.cpu()
        return replace(self, picks=indices if self.picks is None else self.picks[indices])

    def _stored(self, position: int) -> int:
        """Return the number in the dataset of the sample at a position."""
        row = position % self.num_rows
        return row if self.picks is None else int(self.picks[row])

    def _sample(self, position: int, epoch: int, note: Callable[[int], None]) -> Any:
        number = self._stored(position)
        note(number)
        copy = position // self.num_rows
        seed_sample(self.seed, epoch, number + copy * len(self.dataset))
        try:
            return self.dataset[number]
        except ManyhandsError:
            raise
        except Exception as error:
            says = str(error).strip().split("\n")[0]
            reason = f"{type(error).__name__}: {says}" if says else type(error).__name__
            raise TaskFileFailed(f"sample {number} of {self.name or 'the data'} cannot be read: {reason}") from error
