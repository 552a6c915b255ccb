"""Write files so that neither a crash nor a full disk leaves half of one, and say which file cannot be written."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.errors import CannotWrite

UNFINISHED = ".tmp"
"""How the name of a file ends that is not whole yet."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush, then rename: a reader, or whoever comes after a crash, sees the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{UNFINISHED}")  # threads may write too
    with writing(path):
        try:
            with open(beside, "wb") as f:
                f.write(content.encode() if isinstance(content, str) else content)
                f.flush()
                os.fsync(f.fileno())
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)  # on a full disk others need the room
            raise
        flush(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let an `OSError` say which file could not be written."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(path, error) from error


def flush(path: Path) -> None:
    """Have what was written to a file, or renamed in a folder, survive a loss of power."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if not path.is_dir():  # some network file systems flush no folders; their server does
            raise
    finally:
        os.close(number)


def remove_unfinished(folder: Path) -> None:
    """Remove what writers that were killed left in a folder; nobody else may be writing there."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            path.unlink()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Let one process at a time read, change and write a file of this folder; where it cannot be locked, go on."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
