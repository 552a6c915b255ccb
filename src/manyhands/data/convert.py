"""Take the data that a task gives as a dataset: torch's Datasets and DataLoaders, arrays, tables, splits.

To plug in a reader, let it return a map-style dataset (`__len__`, `__getitem__`, and `labels` where they are known
without reading a sample) and give `as_dataset((train, test), name)`; or arrays, and give
`as_dataset(((x_train, y_train), (x_test, y_test)), name)`. An error in `__getitem__` is told with the sample's number,
a `UserError` as it is.
"""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)
from torch.utils.data import Dataset as TorchDataset

from manyhands.data.arrays import as_tensors
from manyhands.data.memory import check_fits
from manyhands.data.readers.huggingface import from_huggingface, is_huggingface
from manyhands.data.readers.labels import hold_out_any
from manyhands.data.samples.split import SampleSplit
from manyhands.data.split import COUNT, AnySplit, Dataset, Split
from manyhands.data.tables import as_arrays, is_array, is_bunch
from manyhands.errors import ManyhandsError, TaskFileFailed, UserError, check, kind_of
from manyhands.machine import facts

FORMS = (
    "a manyhands.Dataset, a pair (train, test) of torch Datasets, DataLoaders, Splits or pairs of arrays, "
    "one pair of arrays (X, y), or a data spec"
)
LOADER = (
    "the batch size, the order, drop_last and the workers of a DataLoader are ignored: the run's own settings decide "
    "them, such as --batch-size and --data-workers"
)


def as_dataset(value: Any, name: str) -> Dataset:
    """Return what a task gives as its data as a dataset; `name` is the dataset's in errors and tables."""
    if isinstance(value, Dataset):
        return value
    if is_huggingface(value):
        return from_huggingface(value, name)
    if is_bunch(value):
        value = (value.data, value.target)
    parts = _train_and_test(value, f"the data of {name}")
    if parts is None:
        return Dataset(name, *_held_out(_arrays(value, f"the data of {name}"), f"the data of {name}"))
    train, test = (
        _part(part, f"the {what} data of {name}") for part, what in zip(parts, ("training", "test"), strict=True)
    )
    names = getattr(_innermost(parts[0]), "classes", None)
    classes = len(names) if isinstance(names, list | tuple) and names else COUNT
    return Dataset(name, train, test, classes, (LOADER,) if any(isinstance(p, DataLoader) for p in parts) else ())


def _train_and_test(value: Any, name: str) -> tuple[Any, Any] | None:
    """Return the two parts of a pair (train, test); None for inputs and targets that are not split yet."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    samples = [_is_samples(part) for part in value]
    if any(samples):
        other = value[samples.index(False)] if not all(samples) else None
        check(
            all(samples) or _is_pair(other),
            f"{name} must be {FORMS}, got {' and '.join(map(kind_of, value))}",
        )
        return value[0], value[1]
    return (value[0], value[1]) if all(map(_is_pair, value)) else None


def _is_samples(value: Any) -> bool:
    """Tell whether a value is samples with their targets, not an array."""
    if isinstance(value, TorchDataset | DataLoader | Split | SampleSplit):
        return True
    sized = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return sized and not (is_array(value) or isinstance(value, tuple | dict | str | bytes))


def _is_pair(value: Any) -> bool:
    """Tell whether a value is a pair of inputs and targets, as arrays or nests of them."""
    if not isinstance(value, tuple) or len(value) != 2 or hasattr(value, "_fields"):
        return False
    x, y = value
    return (is_array(x) or isinstance(x, tuple | dict)) and (y is None or is_array(y) or isinstance(y, tuple | dict))


def _part(value: Any, name: str) -> AnySplit:
    """Return one of the two parts of the data."""
    if isinstance(value, Split | SampleSplit):
        return value
    if isinstance(value, tuple):
        return _arrays(value, name)
    collate = None
    if isinstance(value, DataLoader):
        check(
            value.batch_size is not None or value.batch_sampler is not None,
            f"{name} is a DataLoader with batch_size=None, whose items are whole batches; give single samples",
        )
        value, collate = _sampled(value, name), value.collate_fn
    if collate in (None, default_collate):
        collate, arrays = None, _as_arrays_at_once(value)
        if arrays is not None:
            return arrays
    if isinstance(value, IterableDataset):
        value = _read_once(value, name)
    check(hasattr(value, "__len__"), f"{name} has no length: its {type(value).__name__} needs a method __len__")
    return SampleSplit(value, collate, name)


def _sampled(loader: DataLoader[Any], name: str) -> Any:
    """Return the samples that a DataLoader goes through in an epoch; refuse a sampler that draws others in each."""
    batches, sampler = loader.batch_sampler, loader.sampler
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    if type(sampler) is SubsetRandomSampler:
        return Subset(loader.dataset, [int(i) for i in sampler.indices])
    only_orders = type(sampler) in (SequentialSampler, DistributedSampler) or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
    other = sampler if not only_orders else batches if type(batches) not in (BatchSampler, type(None)) else None
    check(
        other is None,
        f"{name} come from a DataLoader whose {type(other).__name__} chooses the samples, but a run takes every sample "
        "once an epoch; give the DataLoader without it and weigh the loss, or give "
        "torch.utils.data.Subset(dataset, list(sampler)), whose samples are drawn once",
    )
    return loader.dataset


def _arrays(value: Any, name: str) -> Split:
    """Return a pair (X, y) as samples in memory; `name` is theirs in errors."""
    if isinstance(value, Split):
        return value
    if not isinstance(value, tuple | list) or len(value) != 2:
        kind = f"{len(value)} values" if isinstance(value, tuple | list) else kind_of(value)
        raise UserError(f"{name} must be {FORMS}, got {kind}{_hint(value)}")
    x, y = value
    x_name, y_name = f"the inputs in {name}", f"the targets in {name}"
    x, y = as_tensors(as_arrays(x, x_name), x_name), as_tensors(as_arrays(y, y_name), y_name)
    rows, targets = (_lengths(part) for part in (x, y))
    for count in targets:
        check(count == rows[0], f"{x_name} have {rows[0]} rows, but {y_name} have {count}")
    return Split(x, y, as_stored=isinstance(value[0], Tensor) and value[0].dtype == torch.int64)


def _hint(value: Any) -> str:
    if isinstance(value, tuple | list) and len(value) == 4:
        return "; of train_test_split give ((X_train, y_train), (X_test, y_test))"
    if _is_samples(value):
        return "; split it, such as by torch.utils.data.random_split(dataset, [0.8, 0.2])"
    return ""


def _lengths(nested: Any) -> list[int]:
    """Return the number of rows of every array in a nest."""
    if isinstance(nested, dict | tuple | list):
        return [n for part in (nested.values() if isinstance(nested, dict) else nested) for n in _lengths(part)]
    return [len(nested)] if isinstance(nested, np.ndarray | Tensor) and nested.ndim else []


def _held_out(split: Split, name: str) -> tuple[Split, Split]:
    """Return views of the rows for training and for the test; they are shared out as those of files."""
    labels = None if split.labels is None else split.labels.numpy()
    kept, held = hold_out_any(labels, split.num_rows, name)
    return split.rows(torch.from_numpy(kept)), split.rows(torch.from_numpy(held))


def _as_arrays_at_once(dataset: Any) -> Split | None:
    """Return a dataset that only holds tensors, or some rows of one, as arrays, which are gathered much faster."""
    if type(dataset) is Subset:
        whole = _as_arrays_at_once(dataset.dataset)
        return None if whole is None else whole.rows(torch.as_tensor(dataset.indices, dtype=torch.int64))
    if type(dataset) is not TensorDataset:
        return None
    tensors = dataset.tensors
    if len(tensors) == 2:
        return Split(tensors[0], tensors[1], as_stored=True)
    x = tensors[0] if len(tensors) == 1 else tuple(tensors)
    return Split(x, x, as_stored=True)


def _read_once(dataset: IterableDataset[Any], name: str) -> list[Any]:
    """Read an iterable dataset into memory, in its order: the run's order must depend on seed and epoch alone."""
    samples, stored, available = list[Any](), 0, facts.available_bytes()
    try:
        for sample in dataset:
            samples.append(sample)
            stored += _bytes_of(sample)
            if stored > available:
                check_fits(stored, f"{name} (its first {len(samples):,} samples)", "an iterable dataset must end")
    except ManyhandsError:
        raise
    except Exception as error:
        raise TaskFileFailed(f"sample {len(samples)} of {name} cannot be read: {error!r}") from error
    return samples


def _bytes_of(sample: Any) -> int:
    """Return about how many bytes a sample takes."""
    if isinstance(sample, dict | tuple | list):
        return sum(map(_bytes_of, sample.values() if isinstance(sample, dict) else sample)) + sys.getsizeof(sample)
    return int(getattr(sample, "nbytes", 0)) + sys.getsizeof(sample)


def _innermost(value: Any) -> Any:
    """Return the dataset inside DataLoaders and Subsets."""
    while isinstance(value, DataLoader | Subset):
        value = value.dataset
    return value
