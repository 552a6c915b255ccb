"""Who starts the ranks. An engine is a launcher with its comm; its name is the module's name.

| file | does |
| --- | --- |
| `base` | the interface: `Launcher`; `failure` names rank, host and step of an exception |
| `serial`, `threads`, `mpi`, `hybrid`, `torch_`, `ray_`, `sim` | the engines |
| `in_process` | run ranks inside this process: one alone, or threads |
| `processes` | engines of several processes: start ranks, or join those that were started from outside |
| `spawn` | start the processes; find the rank that died from exit statuses and guards' reports |
| `supervisor` | watch the processes: output, progress, signals, the rank to blame; kill all that is left |
| `rank` | the program that each such process runs |
| `mailbox` | the live folder: files between ranks, guards and supervisor |
| `failures` | ranks that were started from outside agree on who of them failed |
| `guard/` | a parent process of each rank that reports how it ended ("killed by signal 9": `guard.process.cause_of`) |
| `signals/` | which signals stop a run, how they are answered, how long ranks may take |
| `on_ray/` | the Ray cluster and its actors |
| `environment` | who started this process: mpiexec, srun, torchrun, or nobody |
| `blas_threads/` | how many BLAS threads a rank uses |
| `user_folder` | where calibrations and other files of the user are kept |
"""

from typing import TYPE_CHECKING

from manyhands._lazy import lazy

if TYPE_CHECKING:
    from manyhands.launch.base import Launcher, make, names

__all__ = ["Launcher", "make", "names"]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "base"))
