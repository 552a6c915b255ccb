"""The status of a run, read from its folder: running, complete, failed, killed, …"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from manyhands.errors import Diverged, Stopped, UserError, printable
from manyhands.record.files import remove_unfinished, writing
from manyhands.record.owner import own, state_of
from manyhands.record.run import RunDir, RunRecord
from manyhands.record.store import write_record

UNREADABLE = "unreadable"


class Failure(BaseModel):
    """Why a run ended early; kept in its folder until the run is resumed."""

    status: Literal["diverged", "failed", "stopped"]
    says: str


class Status(NamedTuple):
    """A word for a table, and a detail in a sentence."""

    word: str
    says: str = ""


@contextmanager
def own_run(run: RunDir, say: Callable[[str], None] = lambda sentence: None) -> Iterator[None]:
    """Own a run's folder; remove the unfinished files of an owner that was killed."""
    run.make()
    with own(run.path, f"run '{run.path.name}'", say):
        remove_unfinished(run.checkpoints)
        shutil.rmtree(run.live, ignore_errors=True)
        yield


@contextmanager
def noting_failure(run: RunDir) -> Iterator[None]:
    """Write the reason into the run's folder if the `with` block raises."""
    with writing(run.failure):
        run.failure.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        note_failure(run, error)
        raise


def note_failure(run: RunDir, error: BaseException) -> None:
    """Write into a run's folder why it ended early."""
    stopped = isinstance(error, KeyboardInterrupt | Stopped)
    says = printable((str(error).strip() or type(error).__name__).splitlines()[0])
    failure = Failure(
        status="stopped" if stopped else "diverged" if isinstance(error, Diverged) else "failed", says=says
    )
    with contextlib.suppress(OSError):  # a full disk must not hide the reason
        write_record(run.failure, failure, indent=None)


def status_of(run: RunDir) -> Status:
    """Return whether a run is running, and if not, how it ended."""
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
    """Return a run's record; where there is none, raise an error with the run's status."""
    record = run.read_or_none()
    if record is None:
        word, says = status_of(run)
        if word == UNREADABLE:
            raise UserError(f"run '{run.path.name}' has a record that cannot be read: {says}")
        raise UserError(f"run '{run.path.name}' has no record: it is {word}" + (f" ({says})" if says else ""))
    return record
