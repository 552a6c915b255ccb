"""Bounds of round-off, from the distance of serial runs that differ only in the order of their sums.

Lengths are Euclidean, of each tensor after each step, so that an error in a small tensor is not lost in a large one.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Lengths = NDArray[np.float64]
"""(steps, tensors)."""

FACTOR = 16.0
"""Ratio of the bound to the largest distance of those serial runs. Optimisers that divide by gradients amplify single
small ones: of 120 comparisons, two came to 3 and 3.5 times that distance."""
LAST_DIGITS = 2.0
"""Rounding error of a step, in units in the last place of the tensor's largest weight."""
OF_CHANGE = 64.0
"""Rounding error of a step's change, in units of the number type's precision."""


def distances(some: Iterable[Floats], others: Iterable[Floats], starts: Sequence[int]) -> Lengths:
    """Return the distance of two runs' weights in each tensor after each step; tensors begin at `starts`."""
    gaps = (a.astype(np.float64) - b for a, b in zip(some, others, strict=True))
    return np.stack([np.sqrt(np.add.reduceat(gap * gap, starts)) for gap in gaps])


def round_off_bound(start: Floats, serial: Floats, permuted: Sequence[Floats], starts: Sequence[int]) -> Lengths:
    """Return the distance from the serial run that round-off can explain.

    That is `FACTOR` times the largest distance so far between any two of the serial and the `permuted` runs, which sum
    in other orders. A few units of the number type's precision are added, since few runs may agree by chance in a
    tensor of few weights.
    """
    eps = float(np.finfo(serial.dtype).eps)
    pairs = [distances(a, b, starts) for a, b in combinations([serial, *permuted], 2)]
    apart = np.maximum.accumulate(np.max(pairs, axis=0), axis=0) if pairs else 0.0
    steps = distances(serial, [start, *serial[:-1]], starts)
    largest = np.stack([np.maximum.reduceat(np.abs(row), starts) for row in serial]).astype(np.float64)
    roots = np.sqrt(np.arange(1, len(serial) + 1))[:, None]  # errors of single steps add up as in a random walk
    of_weights = LAST_DIGITS * eps * roots * np.maximum.accumulate(largest, axis=0)
    bound: Lengths = FACTOR * apart + of_weights + OF_CHANGE * eps * np.sqrt(np.cumsum(steps**2, axis=0))
    return bound
