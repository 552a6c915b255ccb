"""Seed the process-wide generators for each sample, so that what reading it draws depends on no worker."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from manyhands.replica.random import mix_key

NUMPY_SEEDS = 2**32
"""Seeds that numpy's process-wide generator takes; a larger one wraps around."""
DRAWING = threading.RLock()
"""Held while the process-wide generators are seeded: threads of a process share them, so that one draws at a time."""


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the generators of torch (on the CPU), numpy and Python afterwards; one thread at a time is inside."""
    with DRAWING:
        of_torch, of_numpy, of_python = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
        try:
            yield
        finally:
            torch.default_generator.set_state(of_torch)
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def seed_sample(seed: int, epoch: int, number: int) -> None:
    """Seed the generators for reading one sample in one epoch."""
    key = mix_key(seed, epoch, number)
    torch.default_generator.manual_seed(key)  # torch.manual_seed would seed those of GPUs too
    np.random.seed(key % NUMPY_SEEDS)
    random.seed(key)
