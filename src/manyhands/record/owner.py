"""A folder has one owner at a time: the process that leads what is written there.

The lock is the kernel's (flock), so it ends with its process, however that ends. Network file systems pass it on to
their server, unless they are mounted with locks of their own (NFS: nolock, local_lock; Lustre: localflock). So an
owner on another host is believed until its file is removed, even where the lock can be had.
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
"""The file in a folder that is locked, and that says by whom; gone once its owner has ended as it should."""
TRIES, PAUSE_S = 10, 0.03
"""How often the lock is asked for, and after how long: somebody who only looks has it for a moment."""


@dataclass(frozen=True)
class Owner:
    """A process that owns a folder."""

    host: str
    pid: int
    since: str
    boot: str
    """Which start of which machine the process runs in; containers of one machine share it."""
    started: str
    """When the process started, in the kernel's count: a number that is used again has another."""

    @property
    def is_here(self) -> bool:
        """Whether this machine would know that the process is alive."""
        return self.host == socket.gethostname() or (bool(self.boot) and self.boot == _boot())

    @property
    def is_alive(self) -> bool:
        """Whether a process of this machine has this number and started then."""
        return self.boot == _boot() and _exists(self.pid) and _started(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def own(folder: Path, name: str, say: Callable[[str], None] = lambda sentence: None) -> Iterator[None]:
    """Be the owner of a folder, which people know by this name, or refuse if it has one.

    What an owner that was killed left is taken over, and said; files that it had not finished are removed.
    """
    lock = _take(folder / OWNER, name, say)
    try:
        remove_unfinished(folder)
        yield
    finally:
        lock.release()


State = Literal["free", "owned", "left", "elsewhere"]


def state_of(folder: Path) -> tuple[State, Owner | None]:
    """Tell who owns a folder: nobody, a process, one that was killed, or one of another host that may be alive."""
    try:
        number = os.open(folder / OWNER, os.O_RDONLY)
    except OSError:
        return "free", None
    try:
        locked, owner = _lock(number, fcntl.LOCK_SH), _read(number)
    finally:
        os.close(number)
    if locked == "no" or (locked == "cannot" and owner and owner.is_alive):
        return "owned", owner
    return ("free", None) if owner is None else ("left" if owner.is_here else "elsewhere", owner)


@final
class _Lock:
    """A locked file, open for as long as the lock is to last."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # the process may change its folder
        self.number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _held.add(self)

    def is_in_place(self) -> bool:
        """Whether the file is still the one of its path: its last owner may have removed it meanwhile."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self.number), os.stat(self.path))
        return False

    def release(self) -> None:
        """Remove the file, then let go of it: whoever had opened it before sees that it is not in its place."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let go of it, once."""
        _held.discard(self)
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


_held: set[_Lock] = set()


def _let_go_in_child() -> None:
    """Close a forked child's copies: a lock lasts until the last of them is closed, and the child may live longer."""
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_let_go_in_child)


def _take(path: Path, name: str, say: Callable[[str], None]) -> _Lock:
    for _ in range(TRIES):
        try:
            lock = _Lock(path)
        except OSError as error:
            raise UserError(f"cannot write '{path}': {error.strerror}") from None
        try:
            locked = _lock(lock.number, fcntl.LOCK_EX)
            before = _read(lock.number)
            if locked != "no" and lock.is_in_place():
                _check_left(before, path, name, alive=locked == "cannot" and before is not None and before.is_alive)
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


def _check_left(before: Owner | None, path: Path, name: str, *, alive: bool) -> None:
    """Refuse what an owner has left that may be alive all the same."""
    if before is not None and (alive or not before.is_here):
        raise UserError(_refusal(before, path, name))


def _refusal(owner: Owner | None, path: Path, name: str) -> str:
    if owner is None:
        return f"{name} is in use by another process; wait for it to end, or stop it"
    if owner.is_here:
        return f"{name} is in use by {owner} since {owner.since}; wait for it to end, or stop it"
    return f"{name} is in use by {owner} since {owner.since}; if that host or process is gone, remove '{path}' first"


def _lock(number: int, kind: int) -> Literal["yes", "no", "cannot"]:
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return "no"
    except OSError:
        return "cannot"  # the file system has no locks
    return "yes"


def _read(number: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(number, 4096, 0)))
    except (OSError, ValueError, TypeError):
        return None


def _write(lock: _Lock) -> None:
    """Write down that this process has the lock; a full disk leaves no empty file."""
    pid = os.getpid()
    owner = Owner(socket.gethostname(), pid, time.strftime("%Y-%m-%d %H:%M:%S"), _boot(), _started(pid))
    try:
        with writing(lock.path):
            os.ftruncate(lock.number, 0)
            os.pwrite(lock.number, f"{json.dumps(asdict(owner))}\n".encode(), 0)
    except OSError:
        lock.release()
        raise


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


def _started(pid: int) -> str:
    """Return when a process started, where the system tells (Linux); its name, which comes before, may have blanks."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
