"""Engine `hybrid`: MPI processes with worker threads in each: threads → process → global."""

from typing import final

from manyhands.comm.hybrid import HybridComm
from manyhands.config import RunConfig
from manyhands.launch.processes import ProcessLauncher, check_processes
from manyhands.launch.spawn import Mpiexec


@final
class HybridLauncher(ProcessLauncher):
    """`--workers` MPI processes of `--threads` threads each."""

    features = HybridComm.features
    starter = Mpiexec()

    def check(self, config: RunConfig) -> None:
        check_processes(config, self.starter)
