"""The other ranks of this host as the table of processes shows them: those that ended before MPI knew of them.

Neither mpiexec nor srun ends the others when a process ends before MPI_Init, and these would wait for it there.
"""

import os
import time
from pathlib import Path
from typing import final

_LOCAL = (
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_LOCALID", "SLURM_GTIDS", "SLURM_PROCID"),
)
"""The variables with a process's number on its host, how many there are (srun lists their ranks), and its rank."""


STARTERS = frozenset({"hydra_pmi_proxy", "slurmstepd", "prted", "orted", "prterun", "mpirun", "mpiexec"})
"""The programs whose children are the ranks of a host; below any other, such as a container's, it is not known."""
LOOK_S = 0.5
"""How often to look, at the least; a host full of ranks is looked at less often, since each of them looks."""
RANKS_A_LOOK = 32


@final
class Siblings:
    """The processes of this host that mpiexec or srun started together with this one."""

    def __init__(self) -> None:
        names = next((names for names in _LOCAL if all(name in os.environ for name in names)), None)
        self._number, self._count, self._rank = names or ("", "", "")
        self._starter = self._find_starter() if names else 0
        self._next_look = 0.0
        self._seen: dict[int, int] = {}
        self._absent: list[int] = []

    def absent(self) -> list[int]:
        """Return the ranks that were not there when looked at twice, -1 for one unknown; none where nobody tells."""
        if not self._starter or time.monotonic() < self._next_look:
            return []
        before, self._seen, self._absent = self._absent, self._present(), []
        listed = os.environ[self._count].split(",")
        if self._count != "SLURM_GTIDS":
            first = {rank - number for number, rank in self._seen.items()}
            known = len(first) == 1  # ranks are numbered host by host, most often
            listed = [str(min(first) + i if known else -1) for i in range(int(os.environ[self._count]))]
        if self._seen:
            self._absent = [int(rank) for number, rank in enumerate(listed) if number not in self._seen]
        self._next_look = time.monotonic() + max(LOOK_S, len(listed) / RANKS_A_LOOK)
        return self._absent if self._absent == before else []

    def precede(self, rank: int) -> bool:
        """Tell whether a lower rank is there, which speaks for all of this host."""
        return min(self._seen.values(), default=rank) < rank

    def _present(self) -> dict[int, int]:
        """Return the rank of each number on this host that has a living process; nothing if one cannot be told."""
        found = {}
        for pid in _children(self._starter):
            told = _environ(pid)
            if told is None or self._number not in told or self._rank not in told:
                if _stat(pid) is None:
                    continue
                return {}
            found[int(told[self._number])] = int(told[self._rank])
        return found

    def _find_starter(self) -> int:
        """Return the nearest ancestor that is not this rank, if it is a known program: a shell may stand between."""
        pid, own = os.getpid(), os.environ[self._number]
        while (told := _environ(pid)) and told.get(self._number) == own:
            pid = _parent(pid)
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return 0
        return pid if name in STARTERS else 0


def ancestors() -> set[int]:
    """Return the parent of this process, its parent, and so on."""
    found, pid = set(), os.getpid()
    while (pid := _parent(pid)) > 0:
        found.add(pid)
    return found


def _environ(pid: int) -> dict[str, str] | None:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return dict(line.partition("=")[::2] for line in text.split("\0") if line)


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state of a process and its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1])


def _parent(pid: int) -> int:
    found = _stat(pid)
    return found[1] if found else 0


def _children(parent: int) -> list[int]:
    """Return the living children of a process, which may have several threads that start some."""
    lists = Path(f"/proc/{parent}/task").glob("*/children")
    try:
        pids = [int(pid) for path in lists for pid in path.read_text().split()]
    except OSError:
        return []
    return [pid for pid in pids if (found := _stat(pid)) and found[0] not in "ZX"]
