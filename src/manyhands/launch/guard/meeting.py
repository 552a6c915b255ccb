"""Join the other processes of a run, and let this rank's guard know that it waits for them, and when all have come."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from manyhands.comm import mpi, torch_
from manyhands.comm.mpi import MPIComm
from manyhands.comm.torch_ import TorchComm
from manyhands.errors import UserError
from manyhands.launch.guard.segments import unlink_mapped
from manyhands.launch.guard.state import Phase, own_state

World = MPIComm | TorchComm
"""The comm of all processes of a run."""


def world_of(engine: str) -> World:
    """Return the comm of the processes that mpiexec or srun (engine mpi) or torchrun (engine torch) has started."""
    if engine == "mpi":
        return meet_mpi()
    with _meeting():
        return torch_.world(os.environ["MASTER_ADDR"], os.environ.get("GLOO_SOCKET_IFNAME", ""))


@cache
def meet_mpi() -> MPIComm:
    """Join the other ranks in MPI_Init, and unlink their shared memory, so that it is freed however they end."""
    with _meeting():
        comm = mpi.world()
    comm.barrier()
    unlink_mapped()
    return comm


@contextmanager
def _meeting() -> Iterator[None]:
    state = own_state()
    state.phase = max(state.phase, Phase.MEETING)
    yield
    state.phase = max(state.phase, Phase.MET)


def check_world(comm: World, expected: int) -> None:
    """Refuse `expected` worlds of size 1, which the mpiexec of another MPI gives without an error."""
    if comm.size != expected:
        raise UserError(
            f"{expected} MPI ranks were started, but this one sees a world of {comm.size}: mpiexec and the MPI "
            "library that mpi4py loads belong to different installations; 'manyhands doctor' shows which"
        )
