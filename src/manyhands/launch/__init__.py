"""Who starts the ranks. An engine is a launcher with its comm; its name is the module's name.

| file | does |
| --- | --- |
| `base` | the seam: `Launcher`, and the report of a failed rank |
| `serial`, `threads`, `mpi`, `hybrid`, `torch_`, `ray_`, `sim` | the engines |
| `in_process` | ranks inside this process: one alone, or threads |
| `processes` | what engines of several processes share |
| `spawn` | start the processes, and tell from their exits which rank ended how |
| `supervisor` | wait for them, answer signals, end them |
| `rank` | the program that each such process runs |
| `mailbox` | the files by which ranks and supervisor know of each other |
| `failures` | ranks that others started agree on what failed |
| `guard/` | a small parent of each rank that says how it ended |
| `signals/` | what asks a run to end |
| `on_ray/` | ranks on a Ray cluster |
| `environment` | who started this process: mpiexec, srun, torchrun, nobody |
| `blas_threads/` | how many threads a rank's matrix products use |
| `user_folder` | where calibrations and other files of the user are kept |
"""

from typing import TYPE_CHECKING

from manyhands._lazy import lazy

if TYPE_CHECKING:
    from manyhands.launch.base import Launcher, make, names

__all__ = ["Launcher", "make", "names"]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "base"))
