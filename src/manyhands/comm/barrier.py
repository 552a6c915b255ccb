"""A barrier for threads that waits outside Python's lock and that a failing thread can break.

Python's own barrier wakes its threads one after another through the interpreter lock: 35 µs for two threads and
145 µs for four, where semaphores of the C library take 8 and 40. What does not wait is called without giving the lock
away, since getting it back takes longer the more threads want it.
"""

import ctypes
import errno
import threading
import time
from typing import Protocol, final

PATIENCE_S = 0.2
"""How long a waiting thread sleeps before it looks whether the barrier was broken."""


class Broken(Exception):
    """Another thread will not come."""


class _Semaphore(Protocol):
    def post(self) -> None: ...

    def wait(self) -> bool:
        """Take one post; return False if none came within `PATIENCE_S`."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@final
class _NativeSemaphore:
    """A semaphore of the C library; only while this thread waits do others get the interpreter."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc, self._at_once = libc, ctypes.PyDLL(None)
        self._memory = (ctypes.c_char * 64)()  # larger than sem_t anywhere
        if libc.sem_init(self._memory, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "sem_init")

    def post(self) -> None:
        self._at_once.sem_post(self._memory)

    def wait(self) -> bool:
        if self._at_once.sem_trywait(self._memory) == 0:
            return True
        seconds, rest = divmod(time.time() + PATIENCE_S, 1)
        deadline = _Timespec(int(seconds), int(rest * 1e9))
        while self._libc.sem_timedwait(self._memory, ctypes.byref(deadline)) != 0:
            if ctypes.get_errno() == errno.ETIMEDOUT:
                return False
        return True


@final
class _PythonSemaphore:
    """For systems whose C library has no unnamed semaphores."""

    def __init__(self) -> None:
        self._semaphore = threading.Semaphore(0)

    def post(self) -> None:
        self._semaphore.release()

    def wait(self) -> bool:
        return self._semaphore.acquire(timeout=PATIENCE_S)


def _semaphores(count: int) -> list[_Semaphore]:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "sem_timedwait"):
            raise OSError(errno.ENOSYS, "sem_timedwait")
        return [_NativeSemaphore(libc) for _ in range(count)]
    except OSError:
        return [_PythonSemaphore() for _ in range(count)]


@final
class Barrier:
    """Every thread waits until all have come; the first one counts the others in and lets them go."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._come, *self._go = _semaphores(size)
        self._broken = False

    def wait(self, rank: int) -> None:
        """Return when every rank has called it."""
        if rank == 0:
            for _ in range(self._size - 1):
                self._take(self._come)
            for go in self._go:
                go.post()
        else:
            self._come.post()
            self._take(self._go[rank - 1])

    def abort(self) -> None:
        """Let every waiting thread raise `Broken`, now and from now on."""
        self._broken = True

    def _take(self, semaphore: _Semaphore) -> None:
        while not semaphore.wait():
            if self._broken:
                raise Broken
        if self._broken:
            raise Broken
