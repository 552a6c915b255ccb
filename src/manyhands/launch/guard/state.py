"""What a rank tells its guard: a page of shared memory that outlives the rank."""

import ctypes
import mmap
import os
from enum import IntEnum
from functools import cache
from typing import final

_VARIABLE = "MANYHANDS_RANK_STATE"
TEXT_BYTES = 1 << 16


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
    """It has been printed, or written where the supervisor reads it."""
    RANKS = 2
    """The other ranks know too, and leave by themselves."""


class RankState(ctypes.Structure):
    """The page, written by the rank and read by its guard."""

    step: int
    """The last step that the rank has begun; -1 before the first."""
    phase: int
    """A `Phase`."""
    known: int
    """A `FailureKnown`."""
    text: bytes
    """Why the rank wants to end, while it waits for the others to tell them; at most `TEXT_BYTES`."""
    _fields_ = (
        ("step", ctypes.c_int64),
        ("phase", ctypes.c_uint8),
        ("known", ctypes.c_uint8),
        ("text", ctypes.c_char * TEXT_BYTES),
    )


def share_state() -> tuple[RankState, int]:
    """Return a new page and the number of its open file, through which a forked process maps it too."""
    fd = os.memfd_create("manyhands-rank-state")
    os.ftruncate(fd, ctypes.sizeof(RankState))
    state = _map(fd)
    state.step = -1
    return state, fd


def keep_state(fd: int) -> None:
    """Let `own_state` find the page of this process, and of no other that inherits its environment."""
    os.environ[_VARIABLE] = f"{fd}:{os.getpid()}"


def own_state() -> RankState:
    """Return the page of this process; without a guard, one that nobody else reads."""
    return _state_of(os.getpid())


@cache
def _state_of(pid: int) -> RankState:
    fd, _, shared_with = os.environ.get(_VARIABLE, "").partition(":")
    if shared_with == str(pid):
        return _map(int(fd))
    state = _map(-1)
    state.step = -1
    return state


def _map(fd: int) -> RankState:
    return RankState.from_buffer(mmap.mmap(fd, ctypes.sizeof(RankState)))
