"""Which samples make up which batch: decided by the seed and the epoch alone, never by the workers."""

import numpy as np
import torch
from torch import Tensor


def generator(*key: int) -> np.random.Generator:
    """Return a random generator whose draws depend on the numbers of `key` alone, such as a seed and an epoch."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def permutation(n: int, seed: int, epoch: int, *part: int) -> Tensor:
    """Return the order of n samples in this epoch, or of the n samples of one part of the data."""
    return torch.from_numpy(generator(seed, epoch, *part).permutation(n))


def num_batches(n: int, batch_size: int) -> int:
    """Return the number of global batches in an epoch of n samples."""
    return -(-n // batch_size)


def batches(n: int, batch_size: int, seed: int, epoch: int) -> list[Tensor | slice]:
    """Cut the epoch's order into global batches, of which the last may be short."""
    if n == 0:
        return []
    if batch_size >= n:
        # A sum over all samples does not depend on their order, and a slice needs no gathering.
        return [slice(0, n)]
    order = permutation(n, seed, epoch)
    return [order[start : start + batch_size] for start in range(0, n, batch_size)]


def cut(length: int, parts: int, index: int) -> tuple[int, int]:
    """Return (start, stop) of one of the contiguous, nearly equal parts of `length` rows."""
    assert 0 <= index < parts, f"part {index} of {parts}"
    size, longer = divmod(length, parts)
    start = index * size + min(index, longer)
    return start, start + size + (index < longer)
