"""The folder that a simulation, a validation or advice leaves."""

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from manyhands.errors import UserError


def new_folder(out: Path, task: str) -> Path:
    """Make a folder that no other has, named by the time and the task; one that cannot be written is a user error."""
    stem = Path(task.partition(":")[0]).stem
    folder = out / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(2)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write to --out '{out}': {error.strerror}") from None
    return folder


@contextlib.contextmanager
def kept_if_used(out: Path, task: str) -> Iterator[Path]:
    """Make such a folder before the work begins; where that fails, or is stopped, an empty folder goes again."""
    folder = new_folder(out, task)
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
