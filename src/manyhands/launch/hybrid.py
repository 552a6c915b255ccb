"""Engine `hybrid`: MPI processes with worker threads in each: threads → process → global."""

from typing import final

from manyhands.comm.hybrid import HybridComm
from manyhands.launch.processes import ProcessLauncher
from manyhands.launch.spawn import Mpiexec


@final
class HybridLauncher(ProcessLauncher):
    """`--workers` MPI processes of `--threads` threads each."""

    features = HybridComm.features
    starter = Mpiexec()
