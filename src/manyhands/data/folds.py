"""Cut samples into parts that have each class in the same proportion."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.data.order import cut, permutation
from manyhands.errors import UserError, check

HELD_OUT = 6
"""One row of six is held out for the test, evenly over the classes."""

Ints = np.ndarray[Any, np.dtype[np.int64]]

MAX_SEED = 2**32
"""Seeds that scikit-learn's generators take; a larger one wraps around."""


def stratified(y: Tensor, parts: int, seed: int) -> list[Tensor]:
    """Return the rows of each part, ascending: disjoint, complete, and of sizes that differ by at most one."""
    from sklearn.model_selection import StratifiedKFold  # takes a second to import

    assert parts >= 1, f"{parts} parts"
    if parts == 1:
        return [torch.arange(len(y))]
    labels = y.cpu().numpy()
    folds = StratifiedKFold(parts, shuffle=True, random_state=seed % MAX_SEED).split(labels, labels)
    return [torch.from_numpy(held_out) for _, held_out in folds]


def shuffled(count: int, parts: int, seed: int) -> list[Tensor]:
    """Return the rows of each part, ascending: disjoint, complete, drawn by the seed, of sizes that differ by one."""
    order = permutation(count, seed, 0)
    return [order[slice(*cut(count, parts, part))].sort().values for part in range(parts)]


def check_classes(y: Tensor, parts: int, meaning: str) -> None:
    """Refuse a class that cannot be in every part; `meaning` says what the parts are."""
    counts = torch.bincount(y.cpu())
    present = counts.nonzero().flatten()
    rarest = present[counts[present].argmin()]
    if counts[rarest] < parts:
        raise UserError(
            f"class {rarest} has {counts[rarest]} training samples, too few for {meaning}: "
            f"every class must be in every part"
        )


def hold_out(y: Ints, classes: int, what: str) -> tuple[Ints, Ints]:
    """Return the rows to train on and those to test on, both shuffled; every class keeps a row to train on."""
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(y))
    shuffled = y[order]
    by_class = np.argsort(shuffled, kind="stable")
    spare = np.delete(by_class, np.searchsorted(shuffled[by_class], np.arange(classes)))
    check(
        len(spare) > 0,
        f"the {len(y)} rows of {what} are all different, but a label must have rows both to train and to test on",
    )
    num_test = min(len(spare), max(1, len(y) // HELD_OUT))
    # Evenly spaced among rows that are ordered by class, so that each class gives its share.
    taken = spare[(2 * np.arange(num_test) + 1) * len(spare) // (2 * num_test)]
    for_test = np.zeros(len(y), bool)
    for_test[taken] = True
    return order[~for_test], order[for_test]
