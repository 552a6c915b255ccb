"""Share the cores out, so that workers and the threads inside their matrix products do not fight."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from manyhands import facts
from manyhands.config import RunConfig


def blas_threads(config: RunConfig, ranks_here: int) -> int:
    """Return the threads each rank's matrix products may use when so many ranks share this machine."""
    if config.exact:
        return 1  # the number of threads may change the order of a sum
    return config.blas_threads or max(1, facts.cores() // ranks_here)


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Use so many threads in torch and BLAS, and put it back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)
