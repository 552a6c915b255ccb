"""The classes of a dataset's samples, if it tells them without reading the samples."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset


def labels_of(dataset: Any) -> Tensor | None:
    """Return the whole number of each sample from `labels` or `targets` of a dataset, or of those it is made of."""
    if isinstance(dataset, Subset):
        labels = labels_of(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    if isinstance(dataset, ConcatDataset):
        parts = [labels_of(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if known and len(known) == len(parts) else None
    labels = getattr(dataset, "labels", None)
    if labels is None and getattr(dataset, "target_transform", None) is None:
        labels = getattr(dataset, "targets", None)
    return _whole(labels, len(dataset)) if hasattr(dataset, "__len__") else None


def _whole(labels: Any, count: int) -> Tensor | None:
    """Return labels as int64, if they are one whole number for each of `count` samples."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if not isinstance(labels, np.ndarray | list | tuple):
        return None
    try:
        array = np.asarray(labels)
    except ValueError:  # a list of lists of different lengths
        return None
    whole = array.dtype.kind in "bui" and array.shape == (count,)
    return torch.from_numpy(array.astype(np.int64)) if whole else None
