"""Read from environment variables who started this process: mpiexec, srun, torchrun, or nobody."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from manyhands.errors import UserError


@dataclass(frozen=True)
class OuterWorld:
    """This process's rank among processes that were started from outside."""

    rank: int
    size: int
    engine: str = "mpi"
    """The engine that can join them."""
    by: str = "mpiexec"
    """The program that started them."""


_STARTERS = (
    # torchrun first: where srun starts it, its processes see srun's variables too.
    ("RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT"), "torch", "torchrun"),
    # MPICH's mpiexec before srun, by which it may reach other hosts; srun's own PMI sets PMI_RANK as well.
    ("PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID",), "mpi", "mpiexec"),
    ("PMI_RANK", "PMI_SIZE", ("SLURM_PROCID",), "mpi", "srun"),
    ("PMI_RANK", "PMI_SIZE", (), "mpi", "mpiexec"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", (), "mpi", "mpiexec"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", (), "mpi", "srun"),  # a batch script has SLURM_NTASKS only
)
"""The variables with rank and size, those that must be set too, the engine, and the program that sets them."""


def _worlds() -> Iterator[OuterWorld]:
    for rank, size, others, engine, by in _STARTERS:
        if rank in os.environ and all(name in os.environ for name in others):
            yield OuterWorld(int(os.environ[rank]), int(os.environ.get(size, "1")), engine, by)


def outer_world() -> OuterWorld | None:
    """Return this process's place among those that mpiexec, srun or torchrun started; None for a world of one."""
    return next((world for world in _worlds() if world.size > 1), None)


def started_world() -> OuterWorld | None:
    """Return the same also for a world of one; None if nobody started this process as a rank."""
    return outer_world() or next(_worlds(), None)


def leads() -> bool:
    """Tell whether this process prints for all that were started with it: it is alone, or rank 0."""
    world = outer_world()
    return world is None or world.rank == 0


def check_alone(engine: str) -> None:
    """Refuse to run a single-process engine once in each process of `mpiexec -n`."""
    if (world := outer_world()) is not None:
        hint = f"add --engine {world.engine}, or start it without {world.by}"
        raise UserError(f"started as {world.size} processes, but engine {engine} runs in one; {hint}")
