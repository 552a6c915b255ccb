"""Exclusive ownership of a folder by the process that leads what is written there.

The lock is the kernel's (flock), so it ends with its process, however that ends. Network file systems pass it on to
their server, unless they are mounted with local locks (NFS: nolock, local_lock; Lustre: localflock). Therefore an
owner on another host is believed until its file is removed, even where the lock can be acquired.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, final

from manyhands.errors import UserError
from manyhands.record.files import remove_unfinished, writing

OWNER = "owner.json"
"""The locked file in a folder, which names the owner; removed when the owner ends normally."""
TRIES, PAUSE_S = 10, 0.03
"""Attempts to acquire the lock, and the pause between them: `state_of` holds it for a moment."""


@dataclass(frozen=True)
class Owner:
    """A process that owns a folder."""

    host: str
    pid: int
    since: str
    boot: str
    """Id of the machine's current boot; containers of one machine share it."""
    started: str
    """Start time of the process in the kernel's ticks, which differs if the pid is used again."""

    @property
    def is_here(self) -> bool:
        """Whether the process runs on this machine, so that it can be checked."""
        return self.host == socket.gethostname() or (bool(self.boot) and self.boot == _boot())

    @property
    def is_alive(self) -> bool:
        """Whether this machine has a process with this pid and start time."""
        return self.boot == _boot() and _exists(self.pid) and _started(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def own(folder: Path, name: str, say: Callable[[str], None] = lambda sentence: None) -> Iterator[None]:
    """Own a folder, which messages call `name`; refuse if it has another owner.

    The folder of a killed owner is taken over, which `say` is told; its unfinished files are removed.
    """
    lock = _acquire(folder / OWNER, name, say)
    try:
        remove_unfinished(folder)
        yield
    finally:
        lock.release()


State = Literal["free", "owned", "left", "elsewhere"]


def state_of(folder: Path) -> tuple[State, Owner | None]:
    """Return who owns a folder: nobody, a process, a killed process, or one on another host that may be alive."""
    try:
        descriptor = os.open(folder / OWNER, os.O_RDONLY)
    except OSError:
        return "free", None
    try:
        locked, owner = _lock(descriptor, fcntl.LOCK_SH), _read(descriptor)
    finally:
        os.close(descriptor)
    if locked == "no" or (locked == "cannot" and owner and owner.is_alive):
        return "owned", owner
    return ("free", None) if owner is None else ("left" if owner.is_here else "elsewhere", owner)


@final
class _Lock:
    """A locked file, which stays open for as long as the lock lasts."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # the process may change its working directory
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _held.add(self)

    def is_in_place(self) -> bool:
        """Return whether the path still names this file: its last owner may have removed it meanwhile."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        return False

    def release(self) -> None:
        """Remove the file, then unlock it: whoever has opened it before sees that it is not in place."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file, which unlocks it; closing it again does nothing."""
        if self in _held:
            _held.remove(self)
            os.close(self.descriptor)
            self.descriptor = -1


_held: set[_Lock] = set()


def _close_in_child() -> None:
    """Close a forked child's copies: a lock lasts until the last copy is closed, and the child may live longer."""
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


def _acquire(path: Path, name: str, say: Callable[[str], None]) -> _Lock:
    for _ in range(TRIES):
        try:
            lock = _Lock(path)
        except OSError as error:
            raise UserError(f"cannot write '{path}': {error.strerror}") from None
        try:
            locked, before = _lock(lock.descriptor, fcntl.LOCK_EX), _read(lock.descriptor)
            if locked != "no" and lock.is_in_place():
                if before and (not before.is_here or (locked == "cannot" and before.is_alive)):
                    raise UserError(_refusal(before, path, name))
                if before:
                    say(f"{name} was left by {before}, which is gone; taking it over")
                _write(lock)
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()
        time.sleep(PAUSE_S)
    raise UserError(_refusal(before, path, name))


def _refusal(owner: Owner | None, path: Path, name: str) -> str:
    by = f"{owner} since {owner.since}" if owner else "another process"
    if owner is None or owner.is_here:
        return f"{name} is in use by {by}; wait for it to end, or stop it"
    return f"{name} is in use by {by}; if that host or process is gone, remove '{path}' first"


def _lock(descriptor: int, kind: int) -> Literal["yes", "no", "cannot"]:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return "no"
    except OSError:
        return "cannot"  # the file system has no locks
    return "yes"


def _read(descriptor: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(descriptor, 4096, 0)))
    except (OSError, ValueError, TypeError):
        return None


def _write(lock: _Lock) -> None:
    """Write this process into the locked file; a full disk leaves no empty file."""
    pid = os.getpid()
    owner = Owner(socket.gethostname(), pid, time.strftime("%Y-%m-%d %H:%M:%S"), _boot(), _started(pid))
    try:
        with writing(lock.path):
            os.ftruncate(lock.descriptor, 0)
            os.pwrite(lock.descriptor, f"{json.dumps(asdict(owner))}\n".encode(), 0)
    except OSError:
        lock.release()
        raise


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # otherwise it is another user's
    return True


def _started(pid: int) -> str:
    """Return the start time of a process from /proc (Linux); the fields are counted from the end of its name."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
