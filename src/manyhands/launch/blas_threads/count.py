"""Decide how many BLAS threads each rank uses, and set what torch keeps once per process."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from manyhands.config import RunConfig
from manyhands.launch.environment import outer_world

HOST_LISTS = ("HYDRA_HOST_FILE", "SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")
"""Variables from which mpiexec learns that it may start ranks on other hosts."""
SWITCH_S = 1e-4
"""How long a thread may keep the interpreter while another waits for it; the default of 5 ms is several steps."""


def blas_threads(config: RunConfig, ranks_here: int, cores_here: int) -> int:
    """Return the threads each rank's matrix products may use when so many ranks share so many cores."""
    if config.exact:
        return 1  # the number of threads may change the order of a sum
    return config.blas_threads or config.chosen_blas_threads or max(1, cores_here // ranks_here)


def ranks_here(config: RunConfig) -> int | None:
    """Return how many ranks will share the cores of this host; None where others decide which hosts they are on."""
    if config.engine == "sim":
        return None  # they are nowhere, and only their answer counts
    if config.engine in ("serial", "threads"):
        return config.size
    elsewhere = outer_world() or config.mpiexec or config.ray_address or any(name in os.environ for name in HOST_LISTS)
    return None if elsewhere else config.size


@contextmanager
def process_settings(config: RunConfig, ranks_here: int, cores_here: int) -> Iterator[None]:
    """Set them for a run, and put them back afterwards."""
    threads, before = blas_threads(config, ranks_here, cores_here), torch.get_num_threads()
    patience = sys.getswitchinterval()
    torch.set_num_threads(threads)
    sys.setswitchinterval(SWITCH_S)
    try:
        with threadpool_limits(threads), _full_float32(deterministic=config.exact):
            yield
    finally:
        sys.setswitchinterval(patience)
        torch.set_num_threads(before)


@contextmanager
def _full_float32(*, deterministic: bool) -> Iterator[None]:
    """Keep cuDNN from rounding float32 to 10 bits (TF32), far from the round-off that equality promises."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic
    # Since torch 2.9 the precision is named per operation, and the older switch must not be mixed with it.
    kinds = [kind for kind in (getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)) if kind is not None]
    names = [kind.fp32_precision for kind in kinds]
    allowed = cudnn.allow_tf32 if not kinds else None
    try:
        cudnn.deterministic = deterministic
        for kind in kinds:
            kind.fp32_precision = "ieee"
        if not kinds:
            cudnn.allow_tf32 = False
        yield
    finally:
        cudnn.deterministic = before
        for kind, name in zip(kinds, names, strict=True):
            kind.fp32_precision = name
        if allowed is not None:
            cudnn.allow_tf32 = allowed
