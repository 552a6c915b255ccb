"""The files of MPICH's shared memory: 2 MB and more in /dev/shm, which MPICH removes in MPI_Finalize alone.

Once the ranks of a host have met, all of them have mapped it and nobody needs its name, so they remove that at once:
the system then frees the memory with the last process, however it ends. Until they have met, a mark beside it says
which process waits there, so that the next run can remove what a killed one left.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import final

from manyhands.record.files import write_atomically

FOLDER = Path("/dev/shm")
_NAME = re.compile(rf"{FOLDER}/mpich_shm_[0-9a-f]+_\d+$", re.MULTILINE)
_MARK = "manyhands_waits"


def segments_of(pid: int | str) -> set[Path]:
    """Return the files of MPICH that a process has mapped and that still have their names."""
    try:
        return {Path(name) for name in _NAME.findall(Path(f"/proc/{pid}/maps").read_text())}
    except OSError:  # it has ended, belongs to somebody else, or the system does not tell
        return set()


def remove_own() -> None:
    """Take the names from what this process has mapped, once all ranks of this host have mapped it."""
    _remove(segments_of("self"))


@final
class WaitingMark:
    """A note of what a process has mapped while it waits for other ranks, beside it."""

    def __init__(self, pid: int) -> None:
        self._pid, self._path = pid, _mark_of(pid)

    def note(self) -> None:
        """Note the files."""
        names = segments_of(self._pid)
        with suppress(OSError):
            if names and not self._path.exists():
                write_atomically(self._path, "\n".join(map(str, sorted(names))))

    def clear(self) -> None:
        """Remove the note, and the files it speaks of unless another process still has them mapped."""
        with suppress(OSError):
            _remove(_noted(self._path))
            self._path.unlink()


def sweep() -> None:
    """Remove what earlier runs of ours left here when they were killed before their ranks had met."""
    with suppress(OSError):
        for path in FOLDER.glob(f"{_MARK}-{_namespace()}-*"):
            pid = path.name.split("-")[2]
            if path != _mark_of(int(pid)):  # the process has ended, though another may have its number
                _remove(_noted(path))
                path.unlink(missing_ok=True)


def unused() -> list[Path]:
    """Return the user's files of MPICH that no process has mapped any more, whoever left them."""
    try:
        own = {path for path in FOLDER.glob("mpich_shm_*") if path.stat().st_uid == os.getuid()}
    except OSError:
        return []
    return sorted(own - _in_use())


def _noted(path: Path) -> set[Path]:
    """Return the files a mark speaks of that are the user's own; nobody else can make us remove another's."""
    if path.stat().st_uid != os.getuid():
        return set()
    return {Path(name) for name in _NAME.findall(path.read_text())} - _in_use()


def _in_use() -> set[Path]:
    return set().union(*(segments_of(pid.name) for pid in Path("/proc").glob("[0-9]*")))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # another rank was faster, or it belongs to somebody else
            path.unlink()


def _mark_of(pid: int) -> Path:
    """Return where the mark of a process is: numbers are used again, so its start is in the name."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "gone"
    return FOLDER / f"{_MARK}-{_namespace()}-{pid}-{start}"


def _namespace() -> int:
    """Return the number of this process's table of processes: a container may share /dev/shm and not the table."""
    return os.stat("/proc/self/ns/pid").st_ino
