"""Make a batch of samples: torch's own collation or a user's, and what is the input and the target in it."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import default_collate

from manyhands.data.arrays import named_tensors
from manyhands.errors import TaskFileFailed, UserError
from manyhands.replica.nested import Nested

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples."""


def collated(samples: list[Any], collate: Collate | None, numbers: Sequence[int], name: str) -> tuple[Nested, Nested]:
    """Return the inputs and targets of samples; `numbers` and `name` say in errors which samples they are."""
    try:
        if collate is not None:
            return _pair(collate(samples))
        return _pair(_like(samples[0], default_collate(samples)))
    except UserError:
        raise
    except Exception as error:
        if collate is None:
            _refuse_uneven(samples, numbers, name)
        by = "be put into one batch" if collate is None else f"be collated by {_name_of(collate)}"
        says = str(error).strip().split("\n")[0] or type(error).__name__
        which = "sample" if len(numbers) == 1 else "samples"
        raise TaskFileFailed(f"{which} {_listed(numbers)} of {name} cannot {by}: {says}") from error


def _pair(batch: Any) -> tuple[Nested, Nested]:
    """Return the inputs and targets: a pair's, or the batch as both, as an autoencoder needs it."""
    if isinstance(batch, tuple | list) and len(batch) == 1:
        batch = batch[0]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, batch


def _like(sample: Any, batch: Any) -> Any:
    """Return the batch with tuples where the sample has them: torch's collation makes lists of them."""
    if isinstance(sample, dict) and isinstance(batch, dict):
        return {name: _like(sample[name], part) for name, part in batch.items()}
    if isinstance(sample, tuple | list) and isinstance(batch, tuple | list):
        parts = [_like(a, b) for a, b in zip(sample, batch, strict=True)]
        if hasattr(sample, "_fields"):
            return type(sample)(*parts)
        return tuple(parts) if isinstance(sample, tuple) else parts
    return batch


def _refuse_uneven(samples: list[Any], numbers: Sequence[int], name: str) -> None:
    """Name two samples that differ in shape, if there are such."""
    shapes = [_shape_of(sample) for sample in samples]
    for number, shape in zip(numbers, shapes, strict=True):
        if shape != shapes[0]:
            raise UserError(
                f"sample {number} of {name} is {shape}, but sample {numbers[0]} is {shapes[0]}: they make no batch; "
                "give a collate function that pads them, as in manyhands.SampleSplit(dataset, collate=…) or a "
                "DataLoader with collate_fn"
            )


def _shape_of(sample: Any) -> str:
    """Return the shape of a sample in words."""
    if hasattr(sample, "shape"):
        return f"of shape {tuple(sample.shape)}"
    if isinstance(sample, dict):
        return "{" + ", ".join(f"{name}: {_shape_of(part)}" for name, part in sample.items()) + "}"
    if isinstance(sample, tuple | list):
        return "(" + ", ".join(map(_shape_of, sample)) + ")"
    return type(sample).__name__


def _name_of(collate: Collate) -> str:
    return getattr(collate, "__name__", type(collate).__name__)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")


def shape_of_row(x: Nested) -> Any:
    """Return the shape of one row of a batch: of a nest, the same nest of shapes."""
    if isinstance(x, dict):
        return {name: shape_of_row(part) for name, part in x.items()}
    if isinstance(x, tuple | list):
        return tuple(map(shape_of_row, x))
    return tuple(next((tuple(t.shape[1:]) for _, t in named_tensors(x, "")), ()))
