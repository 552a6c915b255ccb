"""Write whole files or none, even in a crash or on a full disk, and name the file that cannot be written."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.errors import CannotWrite

UNFINISHED = ".tmp"
"""Suffix of a file that is still being written."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a temporary file, flush it and rename it: readers see the old content or the new, even after a crash."""
    unique = f"{os.getpid()}.{secrets.token_hex(4)}"  # threads of one process may write at once
    temporary = path.with_name(f".{path.name}.{unique}{UNFINISHED}")
    with writing(path):
        try:
            with open(temporary, "wb") as f:
                f.write(content.encode() if isinstance(content, str) else content)
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)  # on a full disk others need the space
            raise
        flush(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `CannotWrite` that names the file."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(path, error) from error


def flush(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems leave the flushing of folders to their server
            raise
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of killed writers from a folder in which nobody else is writing."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            path.unlink()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder while a file in it is read, changed and written; where there are no locks, go on without."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
