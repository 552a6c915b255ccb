"""Find ranks of this host that ended before MPI_Init, in the table of processes.

Neither mpiexec nor srun ends the other ranks then, and these would wait in MPI_Init for ever.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import final

import psutil

_LOCAL = (
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_LOCALID", "SLURM_GTIDS", "SLURM_PROCID"),
)
"""The variables with a process's local rank, the number of local ranks (srun lists their ranks), and its rank."""
STARTERS = frozenset({"hydra_pmi_proxy", "slurmstepd", "prted", "orted", "prterun", "mpirun", "mpiexec"})
"""The programs whose children are the ranks of a host; below any other, such as a container's, it is not known."""
LOOK_S = 0.5
"""Least time between two looks; on a host full of ranks it is longer, since each of their guards looks."""
RANKS_A_LOOK = 32


@final
class Siblings:
    """The processes of this host that mpiexec or srun started together with this one."""

    def __init__(self) -> None:
        names = next((names for names in _LOCAL if all(name in os.environ for name in names)), None)
        self._local_rank, self._count, self._rank = names or ("", "", "")
        self._starter = self._find_starter() if names else 0
        self._next_look = 0.0
        self._present: dict[int, int] = {}
        self._absent: list[int] = []

    def absent(self) -> list[int]:
        """Return the ranks that two looks in a row did not find, -1 for an unknown one; none where nothing is known."""
        if not self._starter or time.monotonic() < self._next_look:
            return []
        before, self._present, self._absent = self._absent, self._ranks_present(), []
        expected = os.environ[self._count].split(",")
        if self._count != "SLURM_GTIDS":
            first = {rank - local_rank for local_rank, rank in self._present.items()}
            known = len(first) == 1  # ranks are numbered host by host, most often
            expected = [str(min(first) + i if known else -1) for i in range(int(os.environ[self._count]))]
        if self._present:
            self._absent = [int(rank) for i, rank in enumerate(expected) if i not in self._present]
        self._next_look = time.monotonic() + max(LOOK_S, len(expected) / RANKS_A_LOOK)
        return self._absent if self._absent == before else []

    def precede(self, rank: int) -> bool:
        """Tell whether a lower rank is present on this host, whose guard reports for all of them."""
        return min(self._present.values(), default=rank) < rank

    def _ranks_present(self) -> dict[int, int]:
        """Return the rank of each local rank that has a living process; nothing if one process does not tell."""
        present = {}
        try:
            for pid in self._children():
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    process = psutil.Process(pid)
                    if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                        variables = process.environ()
                        present[int(variables[self._local_rank])] = int(variables[self._rank])
        except (psutil.Error, OSError, KeyError):
            return {}
        return present

    def _children(self) -> list[int]:
        """Return the processes that the starter has started; psutil would look through all processes of the host."""
        lists = Path(f"/proc/{self._starter}/task").glob("*/children")
        return [int(pid) for path in lists for pid in path.read_text().split()]

    def _find_starter(self) -> int:
        """Return the nearest ancestor that is not this rank, if it is a known program: a shell may stand between."""
        local_rank = os.environ[self._local_rank]
        process: psutil.Process | None = None
        with suppress(psutil.Error, OSError):  # the starter may belong to another user, /proc to another namespace
            process = psutil.Process()
            while process and process.environ().get(self._local_rank) == local_rank:
                process = process.parent()
        with suppress(psutil.Error, OSError):
            return process.pid if process and process.name() in STARTERS else 0
        return 0


def ancestors() -> set[int]:
    """Return the process ids of this process's parent, its parent, and so on."""
    pids = {os.getppid()}
    with suppress(psutil.Error, OSError):
        pids |= {process.pid for process in psutil.Process().parents()}
    return pids
