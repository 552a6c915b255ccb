"""The wire between a rank and who started it (PMI: lines of text over an open file), which the guard hands on.

When MPI's library finds another rank gone it has the whole run aborted in the same moment, and mpiexec then ends the
guard of the one that is to blame before that can speak. So the guard keeps an abort to itself that nobody explained.
"""

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import final

_VARIABLE = "PMI_FD"
ANSWER_S = 2.0


@final
class PmiWire:
    """Hands on what a rank and its starter say to each other."""

    def __init__(self, starter: int) -> None:
        self._starter = starter
        self._guards, self._ranks = socket.socketpair()
        self._begun = False
        self.aborted = False
        """Whether the rank has asked to end all, and it was not handed on."""

    @classmethod
    def tap(cls) -> "PmiWire | None":
        """Return the wire of this process, if it has one; call this before it is forked."""
        return cls(int(os.environ[_VARIABLE])) if _VARIABLE in os.environ else None

    def keep_rank(self) -> None:
        """In the rank's process: talk to the guard."""
        os.close(self._starter)
        self._guards.close()
        os.environ[_VARIABLE] = str(self._ranks.detach())

    def keep_guard(self, may_abort: Callable[[], bool]) -> None:
        """In the guard's process: hand on, from now on."""
        self._ranks.close()
        threading.Thread(target=self._hand_on, args=(may_abort,), daemon=True).start()

    def abort(self, status: int) -> None:
        """Have the starter end all ranks."""
        with suppress(OSError):
            if not self._begun:
                os.write(self._starter, b"cmd=init pmi_version=1 pmi_subversion=1\n")
                select.select([self._starter], [], [], ANSWER_S)
            os.write(self._starter, f"cmd=abort exitcode={status}\n".encode())

    def _hand_on(self, may_abort: Callable[[], bool]) -> None:
        rank = self._guards.fileno()
        with suppress(OSError):
            while True:
                ready, _, _ = select.select([rank, self._starter], [], [])
                if rank in ready:
                    said = os.read(rank, 1 << 16)
                    if not said:
                        return
                    self._begun = True
                    if b"cmd=abort" in said and not may_abort():
                        self.aborted = True
                        continue
                    _write(self._starter, said)
                if self._starter in ready:
                    said = os.read(self._starter, 1 << 16)
                    if not said:
                        self._guards.close()
                        return
                    _write(rank, said)


def _write(fd: int, said: bytes) -> None:
    while said:
        said = said[os.write(fd, said) :]
