"""Decide how many BLAS threads each rank uses, and apply the settings that torch keeps once per process."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from threadpoolctl import threadpool_limits

from manyhands.config import RunConfig
from manyhands.launch.environment import outer_world

HOST_LISTS = ("HYDRA_HOST_FILE", "SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")
"""Variables that allow mpiexec to start ranks on other hosts."""
SWITCH_S = 1e-4
"""How long a thread may keep the interpreter while another waits for it; the default of 5 ms is several steps."""


def blas_threads(config: RunConfig, ranks_here: int, cores_here: int) -> int:
    """Return the BLAS threads per rank when `ranks_here` ranks share `cores_here` cores."""
    if config.exact:
        return 1  # the number of threads may change the order of a sum
    return config.blas_threads or config.chosen_blas_threads or max(1, cores_here // ranks_here)


def ranks_here(config: RunConfig) -> int | None:
    """Return how many ranks will share the cores of this host; None if it is not known where they will run."""
    if config.engine == "sim":
        return None  # virtual ranks run nowhere, and only their answer counts
    if config.engine in ("serial", "threads"):
        return config.size
    elsewhere = outer_world() or config.mpiexec or config.ray_address or any(name in os.environ for name in HOST_LISTS)
    return None if elsewhere else config.size


@contextmanager
def process_settings(config: RunConfig, ranks_here: int, cores_here: int) -> Iterator[None]:
    """Set the number of BLAS threads, the interpreter's switch interval and full float32 for the time of a run."""
    threads, cudnn = blas_threads(config, ranks_here, cores_here), torch.backends.cudnn
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
        stack.enter_context(threadpool_limits(threads))
        stack.enter_context(replaced(cudnn, "deterministic", config.exact))
        # cuDNN would round float32 to 10 bits (TF32), far coarser than the round-off that equality allows. Since torch
        # 2.9 the precision is named per operation, and the older switch must not be mixed with it.
        operations = [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]
        for operation in operations:
            stack.enter_context(replaced(operation, "fp32_precision", "ieee"))
        if not operations:
            stack.enter_context(replaced(cudnn, "allow_tf32", False))
        yield


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute of an object for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
