"""The norm of a whole gradient, of which every rank may hold a slice: the same bits for every number of slices.

The squares are added in fixed blocks of elements, and the blocks in a fixed balanced tree.
"""

import torch
from torch import Tensor

from manyhands.replica.optimizer.groups import ALIGNED

MOST_ELEMENTS = 1 << 20
"""Elements that are converted to float64 at once, which bounds the memory."""


def num_blocks(length: int) -> int:
    """Return the number of blocks of a span that begins with one."""
    return -(-length // ALIGNED)


def sums_of_squares(gradient: Tensor) -> Tensor:
    """Return the sum of squares of each block of a flat gradient, in float64."""
    return torch.cat([_of_blocks(part) for part in torch.split(gradient, MOST_ELEMENTS)])


def tree_sum(values: Tensor) -> float:
    """Add values in a balanced tree, whatever the number of threads."""
    while len(values) > 1:
        values = torch.cat([values, values.new_zeros(len(values) % 2)]).view(2, -1)
        values = values[0] + values[1]
    return float(values.sum())


def clip_factor(most: float, norm: float) -> float:
    """Return what a gradient of this norm is multiplied by, as in `torch.nn.utils.clip_grad_norm_`."""
    factor = most / (norm + 1e-6)
    return min(factor, 1.0) if factor == factor else factor  # NaN stays, as in torch


def _of_blocks(gradient: Tensor) -> Tensor:
    rows = gradient.new_zeros(num_blocks(len(gradient)), ALIGNED, dtype=torch.float64)
    rows.view(-1)[: len(gradient)] = gradient
    rows.square_()
    width = ALIGNED
    while width > 1:  # sums along a row would be added in an order that depends on the number of rows
        width //= 2
        rows = rows[:, :width] + rows[:, width:]
    return rows.view(-1)
