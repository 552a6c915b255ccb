"""What mpiexec and srun tell a process they start, in environment variables."""

import os
from dataclasses import dataclass

from manyhands.errors import UserError

_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # set by srun; a batch script has SLURM_NTASKS only
)


@dataclass(frozen=True)
class OuterWorld:
    """A rank among others that were started from outside."""

    rank: int
    size: int


def outer_world() -> OuterWorld | None:
    """Return this process's place among the ranks that mpiexec or srun started; None for a world of one."""
    for rank, size in _VARIABLES:
        if rank in os.environ and int(os.environ.get(size, "1")) > 1:
            return OuterWorld(int(os.environ[rank]), int(os.environ[size]))
    return None


def check_alone(engine: str) -> None:
    """Refuse to train n times the same under `mpiexec -n`."""
    world = outer_world()
    if world is not None:
        hint = "add --engine mpi, or start it without mpiexec"
        raise UserError(f"started as {world.size} processes, but engine {engine} runs in one; {hint}")
