"""Seed the process-wide generators while a user's code runs, so that every rank draws the same numbers."""

import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

from manyhands.data.samples.draws import DRAWING, NUMPY_SEEDS

# Threads of a process share these generators, so that one draws at a time. Two locks, since a data function may train
# a network of its own, whose threads make models meanwhile; ranks make theirs when all of them have their data. Models
# and samples have one lock: a rank may read samples while another one makes the model of its next fold.
MODELS, DATA = DRAWING, threading.RLock()


@contextmanager
def seeded(seed: int, turn: AbstractContextManager[object] = MODELS) -> Iterator[None]:
    """Seed the generators of Python, numpy and torch inside, and restore their states afterwards.

    `turn` is the lock to hold meanwhile.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with turn, torch.random.fork_rng(devices=devices):
        before, before_numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % NUMPY_SEEDS)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(before_numpy)
