"""Engine `mpi`: ranks as MPI processes."""

from typing import final

from manyhands.comm.mpi import MPIComm
from manyhands.config import RunConfig
from manyhands.launch.base import check_one_thread
from manyhands.launch.processes import ProcessLauncher, check_processes
from manyhands.launch.spawn import Mpiexec


@final
class MPILauncher(ProcessLauncher):
    """`--workers` MPI processes, and the servers."""

    features = MPIComm.features
    starter = Mpiexec()

    def check(self, config: RunConfig) -> None:
        check_one_thread(config)
        check_processes(config, self.starter)
