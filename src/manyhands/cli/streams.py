"""Standard streams that may be closed, broken or full: what people read may get lost, a result not without a word."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast, final

from manyhands.errors import ManyhandsError


class ReaderGone(Exception):
    """Whoever read the results wants no more of them, as `head` does."""


@contextmanager
def surviving_streams() -> Iterator[None]:
    """Have stdout raise in one sentence what goes wrong there, and stderr nothing: a terminal may be gone any time."""
    for number in (0, 1, 2):
        _occupy(number)
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):  # names of files may hold bytes that are no letters
            stream.reconfigure(errors="backslashreplace")
    # Python has no stream where a number was closed.
    sys.stdout = cast(TextIO, _Results(sys.stdout or os.fdopen(1, "w", closefd=False)))
    sys.stderr = cast(TextIO, _ForPeople(sys.stderr or os.fdopen(2, "w", closefd=False)))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _occupy(number: int) -> None:
    """Open nothing in the place of a stream that is closed, or the next file to be opened would get its number."""
    try:
        os.fstat(number)
    except OSError:
        # Of stdout only so that it cannot be written to: whether a result gets lost is seen when there is one.
        os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)


@final
class _Results:
    """A stdout that says in one sentence why it cannot be written to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._explained():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._explained():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with suppress(OSError, ValueError, AttributeError):  # what is left of it must not be tried again at exit
                number = self._stream.fileno()
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            if isinstance(error, BrokenPipeError):
                raise ReaderGone from None
            why = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise ManyhandsError(f"cannot write the result to stdout: {why}") from None


@final
class _ForPeople:
    """A stderr that never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
