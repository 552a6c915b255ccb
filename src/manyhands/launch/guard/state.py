"""What a rank lets its guard know: a page of memory that both have, and that outlives the rank."""

import mmap
import os
import struct
from enum import IntEnum
from functools import cache
from typing import final

_VARIABLE = "MANYHANDS_RANK_STATE"
_HEAD = struct.Struct("<qBBH")
"""The last step, the phase, whether it is known why the rank ends, and the length of the text after it."""
_SIZE = 1 << 16


@final
class Phase(IntEnum):
    """How far a rank has come."""

    STARTING = 0
    MEETING = 1
    """It waits for the others, most likely in MPI_Init, which cannot be interrupted."""
    MET = 2
    RUNNING = 3


@final
class FailureKnown(IntEnum):
    """Who knows why a rank ends."""

    NOBODY = 0
    USER = 1
    """It has been said."""
    RANKS = 2
    """The other ranks know too, and leave by themselves."""


@final
class RankState:
    """The page, as the rank writes it and the guard reads it."""

    def __init__(self, fd: int = -1) -> None:
        self._page = mmap.mmap(fd, _SIZE)

    @property
    def step(self) -> int:
        """The last step that was begun; -1 before the first."""
        return int(_HEAD.unpack_from(self._page)[0]) - 1

    @step.setter
    def step(self, step: int) -> None:
        """Write the step where the guard reads it."""
        struct.pack_into("<q", self._page, 0, step + 1)

    @property
    def phase(self) -> Phase:
        """How far the rank has come."""
        return Phase(self._page[8])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        """Note how far the rank has come."""
        self._page[8] = phase

    @property
    def known(self) -> FailureKnown:
        """Who knows why the rank ends."""
        return FailureKnown(self._page[9])

    @known.setter
    def known(self, known: FailureKnown) -> None:
        """Write who knows of the failure where the guard reads it."""
        self._page[9] = known

    @property
    def text(self) -> str:
        """Why the rank wants to end, while it waits for the others to tell them."""
        length = _HEAD.unpack_from(self._page)[3]
        return bytes(self._page[_HEAD.size : _HEAD.size + length]).decode(errors="replace")

    @text.setter
    def text(self, text: str) -> None:
        """Write why the rank wants to end where the guard reads it."""
        written = text.encode(errors="backslashreplace")[: _SIZE - _HEAD.size - 1]
        self._page[_HEAD.size : _HEAD.size + len(written)] = written
        struct.pack_into("<H", self._page, 10, len(written))

    @classmethod
    def share(cls) -> "tuple[RankState, int]":
        """Make a page that a forked process has too, and the number of its open file."""
        fd = os.memfd_create("manyhands-rank-state")
        os.ftruncate(fd, _SIZE)
        return cls(fd), fd


def keep_state(fd: int) -> None:
    """Let `own_state` find the page of this process, and of no other that inherits its environment."""
    os.environ[_VARIABLE] = f"{fd}:{os.getpid()}"


def own_state() -> RankState:
    """Return the page of this process; without a guard, one that nobody else reads."""
    return _state_of(os.getpid())


@cache
def _state_of(pid: int) -> RankState:
    fd, _, shared_with = os.environ.get(_VARIABLE, "").partition(":")
    return RankState(int(fd)) if shared_with == str(pid) else RankState()
