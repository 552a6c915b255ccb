"""Relay PMI messages (lines of text over an open file) between a rank and the program that started it.

When MPI's library finds another rank gone, it asks for an abort of the whole run at once, and mpiexec then kills the
guard of the rank that is to blame before that guard can report it. So the guard holds back an abort that nobody has
explained.
"""

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import final

PMI_FD = "PMI_FD"
"""The variable with the number of the open file, where there is one."""
ANSWER_S = 2.0
"""How long the starter may take to answer the greeting before an abort."""


@final
class PmiRelay:
    """Stands between a rank and its starter; made before the guard forks the rank."""

    def __init__(self) -> None:
        self._starter = int(os.environ[PMI_FD])
        self._guard_end, self._rank_end = socket.socketpair()
        self._begun = False
        self.aborted = False
        """Whether the rank has asked for an abort that was held back."""

    def use_in_rank(self) -> None:
        """In the rank's process: let MPI talk to the guard instead of the starter."""
        os.close(self._starter)
        self._guard_end.close()
        os.environ[PMI_FD] = str(self._rank_end.detach())

    def start_in_guard(self, may_abort: Callable[[], bool]) -> None:
        """In the guard's process: relay from now on; an abort only if `may_abort` returns True."""
        self._rank_end.close()
        threading.Thread(target=self._relay, args=(may_abort,), daemon=True).start()

    def abort(self, status: int) -> None:
        """Have the starter end all ranks."""
        with suppress(OSError):
            if not self._begun:
                os.write(self._starter, b"cmd=init pmi_version=1 pmi_subversion=1\n")
                select.select([self._starter], [], [], ANSWER_S)
            os.write(self._starter, f"cmd=abort exitcode={status}\n".encode())

    def _relay(self, may_abort: Callable[[], bool]) -> None:
        rank = self._guard_end.fileno()
        with suppress(OSError):
            while True:
                for source in select.select([rank, self._starter], [], [])[0]:
                    message = os.read(source, 1 << 16)
                    if not message:
                        self._guard_end.close()
                        return
                    self._begun |= source == rank
                    if source == rank and b"cmd=abort" in message and not may_abort():
                        self.aborted = True
                    else:
                        _write_all(self._starter if source == rank else rank, message)


def _write_all(fd: int, message: bytes) -> None:
    while message:
        message = message[os.write(fd, message) :]
