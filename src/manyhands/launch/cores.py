"""What torch keeps once per process: how many threads it may use, and how exactly it multiplies."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from manyhands.config import RunConfig

SWITCH_S = 1e-4
"""How long a thread may keep the interpreter while another waits for it; the default of 5 ms is several steps."""


def blas_threads(config: RunConfig, ranks_here: int, cores_here: int) -> int:
    """Return the threads each rank's matrix products may use when so many ranks share so many cores."""
    if config.exact:
        return 1  # the number of threads may change the order of a sum
    return config.blas_threads or max(1, cores_here // ranks_here)


@contextmanager
def process_settings(config: RunConfig, ranks_here: int, cores_here: int) -> Iterator[None]:
    """Set them for a run, and put them back afterwards."""
    threads, before = blas_threads(config, ranks_here, cores_here), torch.get_num_threads()
    patience = sys.getswitchinterval()
    torch.set_num_threads(threads)
    sys.setswitchinterval(SWITCH_S)
    try:
        # By default cuDNN rounds float32 to 10 bits (TF32): far from the round-off that equality promises.
        with (
            threadpool_limits(threads),
            torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=config.exact),
        ):
            yield
    finally:
        sys.setswitchinterval(patience)
        torch.set_num_threads(before)
