"""Cut samples into parts that have each class in the same proportion."""

import torch
from torch import Tensor

from manyhands.errors import UserError

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
