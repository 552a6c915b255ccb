"""Engine `mpi`: ranks as MPI processes."""

from typing import final

from manyhands.comm.mpi import MPIComm
from manyhands.launch.processes import ProcessLauncher
from manyhands.launch.spawn import Mpiexec


@final
class MPILauncher(ProcessLauncher):
    """`--workers` MPI processes, and the servers."""

    features = MPIComm.features
    starter = Mpiexec()
