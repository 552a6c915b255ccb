"""A barrier for threads that waits outside Python's lock and that a failing thread can break.

Python's own barrier wakes its threads one after another through the interpreter lock: 35 µs for two threads and
145 µs for four, where semaphores of the C library take 8 and 40. Calls that do not block keep the interpreter lock,
since getting it back takes longer the more threads want it.
"""

import ctypes
import errno
import threading
import time
from typing import final

PATIENCE_S = 0.2
"""How long a waiting thread sleeps before it checks whether the barrier was broken."""


class GroupAborted(Exception):
    """Another rank of the group failed; this one must not go on waiting for it."""


@final
class _NativeSemaphore:
    """A semaphore of the C library; other threads get the interpreter lock only while this one waits."""

    def __init__(self) -> None:
        libc, self._at_once = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None)
        self._timed_wait = libc.sem_timedwait  # an AttributeError where the library has none
        self._memory = (ctypes.c_char * 64)()  # larger than sem_t anywhere
        if libc.sem_init(self._memory, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "sem_init")

    def release(self) -> None:
        self._at_once.sem_post(self._memory)

    def acquire(self, *, timeout: float) -> bool:
        """Return True after a release, or False if none came within `timeout` seconds."""
        if self._at_once.sem_trywait(self._memory) == 0:
            return True
        seconds, rest = divmod(time.time() + timeout, 1)
        deadline = (ctypes.c_long * 2)(int(seconds), int(rest * 1e9))  # a struct timespec
        while self._timed_wait(self._memory, ctypes.byref(deadline)) != 0:
            if ctypes.get_errno() == errno.ETIMEDOUT:
                return False
        return True


Semaphore = _NativeSemaphore | threading.Semaphore


def _semaphores(count: int) -> list[Semaphore]:
    try:
        return [_NativeSemaphore() for _ in range(count)]
    except (AttributeError, OSError):  # the C library has no unnamed semaphores
        return [threading.Semaphore(0) for _ in range(count)]


@final
class Barrier:
    """Every thread waits until all have come; the thread of rank 0 counts the others in and lets them go."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._come, *self._go = _semaphores(size)
        self._broken = False

    def wait(self, rank: int) -> None:
        """Return when every rank has called it; raise `GroupAborted` once the barrier is broken."""
        if rank == 0:
            for _ in range(self._size - 1):
                self._take(self._come)
            for go in self._go:
                go.release()
        else:
            self._come.release()
            self._take(self._go[rank - 1])

    def abort(self) -> None:
        """Break the barrier: every thread that waits, now or later, raises `GroupAborted`."""
        self._broken = True

    def _take(self, semaphore: Semaphore) -> None:
        while not semaphore.acquire(timeout=PATIENCE_S) and not self._broken:
            pass
        if self._broken:
            raise GroupAborted
