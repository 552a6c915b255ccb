"""Free MPICH's shared memory: files of 2 MB and more in /dev/shm, which MPICH removes in MPI_Finalize alone.

Once the ranks of a host have met, all of them have mapped a file and nobody needs its name, so they unlink it at once:
the system then frees the memory with the last process, however it ends. Until they have met, a mark beside it says
which process waits there, so that the next run can remove the files of one that was killed.
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
    """Return MPICH's files that a process has mapped and that are not unlinked yet."""
    try:
        return {Path(name) for name in _NAME.findall(Path(f"/proc/{pid}/maps").read_text())}
    except OSError:  # it has ended, belongs to somebody else, or the system does not tell
        return set()


def unlink_mapped() -> None:
    """Unlink the files that this process has mapped, once all ranks of this host have mapped them."""
    _remove(segments_of("self"))


@final
class WaitingMark:
    """A file beside the segments that lists those which a process has mapped while it waits for other ranks."""

    def __init__(self, pid: int) -> None:
        self._pid, self._path = pid, _mark_of(pid)

    def note(self) -> None:
        """Write the mark, if there is none and the process has mapped any segment."""
        names = segments_of(self._pid)
        with suppress(OSError):
            if names and not self._path.exists():
                write_atomically(self._path, "\n".join(map(str, sorted(names))))

    def clear(self) -> None:
        """Remove the mark, and the segments it lists unless another process still has them mapped."""
        with suppress(OSError):
            _remove(_listed_in(self._path))
            self._path.unlink()


def sweep() -> None:
    """Remove the segments of our earlier runs on this host that were killed before their ranks had met."""
    with suppress(OSError):
        for path in FOLDER.glob(f"{_MARK}-{_namespace()}-*"):
            pid = path.name.split("-")[2]
            if path != _mark_of(int(pid)):  # the process has ended, though another may have its number
                _remove(_listed_in(path))
                path.unlink(missing_ok=True)


def unused() -> list[Path]:
    """Return the user's MPICH files that no process has mapped any more, whoever left them."""
    try:
        users = {path for path in FOLDER.glob("mpich_shm_*") if path.stat().st_uid == os.getuid()}
    except OSError:
        return []
    return sorted(users - _in_use())


def _listed_in(mark: Path) -> set[Path]:
    """Return the unused segments that a mark of this user lists: nobody else can make us remove another's files."""
    if mark.stat().st_uid != os.getuid():
        return set()
    return {Path(name) for name in _NAME.findall(mark.read_text())} - _in_use()


def _in_use() -> set[Path]:
    return set().union(*(segments_of(pid.name) for pid in Path("/proc").glob("[0-9]*")))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # another rank was faster, or it belongs to somebody else
            path.unlink()


def _mark_of(pid: int) -> Path:
    """Return the path of a process's mark; its start time is in the name, since process ids are used again."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "gone"
    return FOLDER / f"{_MARK}-{_namespace()}-{pid}-{start}"


def _namespace() -> int:
    """Return the number of this process's PID namespace: a container may share /dev/shm and not the process ids."""
    return os.stat("/proc/self/ns/pid").st_ino
