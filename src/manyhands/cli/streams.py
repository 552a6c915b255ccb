"""Standard streams that may be closed, broken or full: a lost progress line is ignored, a lost result is an error."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TextIO, cast, final

from manyhands.errors import ManyhandsError


class ReaderGone(Exception):
    """The reader of stdout has closed it, as `head` does when it has enough."""


@contextmanager
def surviving_streams() -> Iterator[None]:
    """Make stdout raise one sentence where writing fails, and stderr never fail: a terminal may be gone any time."""
    for number in (0, 1, 2):
        _occupy(number)
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):  # names of files may hold bytes that are no letters
            stream.reconfigure(errors="backslashreplace")
    # Python has no stream where a number was closed.
    sys.stdout = cast(TextIO, _Guarded(sys.stdout or os.fdopen(1, "w", closefd=False), _explained))
    stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    sys.stderr = cast(TextIO, _Guarded(stderr, lambda stream: suppress(OSError, ValueError)))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _occupy(number: int) -> None:
    """Open the null device in place of a closed stream, or the next file to be opened would get its number."""
    try:
        os.fstat(number)
    except OSError:
        # Stdout cannot be written to then: whether a result gets lost is known when there is one.
        os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)


@final
class _Guarded:
    """A stream that writes and flushes within the context that `guard` makes of it."""

    def __init__(self, stream: TextIO, guard: Callable[[TextIO], AbstractContextManager[object]]) -> None:
        self._stream, self._guard = stream, guard

    def write(self, text: str) -> int:
        with self._guard(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guard(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _explained(stream: TextIO) -> Iterator[None]:
    """Say in one sentence why `stream` cannot be written to."""
    try:
        yield
    except OSError as error:
        with suppress(OSError, ValueError, AttributeError):  # Python must not try again at exit to write the rest
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        why = "it is closed" if error.errno == errno.EBADF else error.strerror
        raise ManyhandsError(f"cannot write the result to stdout: {why}") from None
