"""Engine `mpi`: ranks as MPI processes."""

from typing import final

from manyhands.comm.mpi import MPIComm
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.launch.processes import ProcessLauncher, check_processes
from manyhands.launch.spawn import Mpiexec


@final
class MPILauncher(ProcessLauncher):
    """`--workers` MPI processes, and the servers."""

    features = MPIComm.features
    starter = Mpiexec()

    def check(self, config: RunConfig) -> None:
        """Allow any number of workers of one thread each; inside mpiexec, as many as it started."""
        hint = "choose --engine hybrid for threads inside MPI processes"
        check(config.threads == 1, f"--threads belongs to engine hybrid; {hint}")
        check_processes(config, self.starter)
