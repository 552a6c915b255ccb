"""How a run is doing, or how it ended, as far as its folder tells."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from manyhands.errors import Diverged, Stopped, UserError, printable
from manyhands.record.files import remove_unfinished, write_atomically, writing
from manyhands.record.owner import own, state_of
from manyhands.record.run import RunDir, RunRecord

UNREADABLE = "unreadable"


class Failure(BaseModel):
    """Why a run ended early; left in its folder until it is resumed."""

    status: Literal["diverged", "failed", "stopped"]
    says: str


class Status(NamedTuple):
    """A word for a table, and what else is known."""

    word: str
    says: str = ""


@contextmanager
def own_run(run: RunDir, say: Callable[[str], None] = lambda sentence: None) -> Iterator[None]:
    """Be the owner of a run's folder; remove what an owner that was killed had not finished."""
    run.make()
    with own(run.path, f"run '{run.path.name}'", say):
        remove_unfinished(run.checkpoints)
        shutil.rmtree(run.live, ignore_errors=True)
        yield


@contextmanager
def noting_failure(run: RunDir) -> Iterator[None]:
    """Leave in the folder why the run ended early, if it does."""
    with writing(run.failure):
        run.failure.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        note_failure(run, error)
        raise


def note_failure(run: RunDir, error: BaseException) -> None:
    """Leave in a run's folder why it ended early; on a full disk this is not to hide the reason."""
    status: Literal["diverged", "failed", "stopped"] = "failed"
    if isinstance(error, Diverged):
        status = "diverged"
    if isinstance(error, KeyboardInterrupt | Stopped):
        status = "stopped"
    says = printable((str(error).strip() or type(error).__name__).splitlines()[0])
    with contextlib.suppress(OSError):
        write_atomically(run.failure, Failure(status=status, says=says).model_dump_json() + "\n")


def status_of(run: RunDir) -> Status:
    """Tell whether a run is going on, and if not, how it ended."""
    state, owner = state_of(run.path)
    if state == "owned":
        return Status("running", f"by {owner}" if owner else "")
    with contextlib.suppress(OSError, ValidationError):
        failure = Failure.model_validate_json(run.failure.read_bytes())
        return Status(failure.status, failure.says)
    if state == "left":
        return Status("killed", f"{owner} is gone")
    if state == "elsewhere" and owner is not None:
        return Status(f"on {owner.host}", f"{owner} had it since {owner.since}")
    record = run.read_or_none()
    if record is not None:
        return Status(record.status, record.weights_missing)
    if run.record.is_file():
        return Status(UNREADABLE, f"'{run.record}' is damaged")
    return Status("profile") if run.profile.is_file() else Status("unfinished")


def record_of(run: RunDir) -> RunRecord:
    """Return a run's record; say how the run is doing, or how it ended, where it has none."""
    record = run.read_or_none()
    if record is None:
        word, says = status_of(run)
        if word == UNREADABLE:
            raise UserError(f"run '{run.path.name}' has a record that cannot be read: {says}")
        raise UserError(f"run '{run.path.name}' has no record: it is {word}" + (f" ({says})" if says else ""))
    return record
