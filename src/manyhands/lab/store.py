"""The folders of sweeps: what was asked for, the runs that have ended, and which sweep to go on with."""

import contextlib
import secrets
import time
from pathlib import Path

from manyhands.errors import UserError, check
from manyhands.lab.asked import Asked
from manyhands.record import Kind, Measure, SweepDir, SweepRecord, find_sweep, list_sweeps, write_atomically
from manyhands.request import absolute


def open_sweep(out: Path, asked: Asked) -> SweepDir:
    """Make the folder of a new sweep; one that cannot be written is a user error."""
    stem = Path(asked.task.partition(":")[0]).stem
    sweep = SweepDir(out / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{asked.kind}-{secrets.token_hex(2)}")
    try:
        sweep.path.mkdir(parents=True)
        write_atomically(sweep.toml, asked.to_toml())
    except OSError as error:
        raise UserError(f"cannot write to --out '{out}': {error.strerror}") from None
    return sweep


def read_measures(sweep: SweepDir) -> list[Measure]:
    """Return the runs that have ended; a last line that was cut off is dropped, and the file mended."""
    if not sweep.measures.is_file():
        return []
    whole, _, torn = sweep.measures.read_bytes().rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    try:
        found = [Measure.model_validate_json(line.decode()) for line in lines]
    except ValueError:
        raise UserError(f"'{sweep.measures}' is damaged: its lines are not runs of a sweep") from None
    if torn:
        write_atomically(sweep.measures, "".join(f"{line.decode()}\n" for line in lines))
    return found


def append_measure(sweep: SweepDir, measure: Measure) -> None:
    """Write down a run as soon as it has ended."""
    try:
        with open(sweep.measures, "a", encoding="utf-8") as f:
            f.write(f"{measure.model_dump_json()}\n")
    except OSError as error:
        raise UserError(f"cannot write to '{sweep.measures}': {error.strerror}") from None


def sweep_to_resume(out: Path, kind: Kind, task: str, name: str = "") -> SweepDir:
    """Return the sweep of this name to go on with, or the newest one of this kind and task that is not complete."""
    if name:
        sweep = find_sweep(out, name)
        asked = Asked.from_toml(sweep.toml)
        same = (asked.kind, asked.task) == (kind, absolute(task))
        check(same, f"sweep '{sweep.path.name}' is a {asked.kind} one of '{asked.task}', not a {kind} one of '{task}'")
        check(not _is_complete(sweep), f"sweep '{sweep.path.name}' is complete; there is nothing to go on with")
        return sweep
    for sweep in reversed(list_sweeps(out)):
        with contextlib.suppress(UserError):  # a damaged one is not what is looked for
            asked = Asked.from_toml(sweep.toml)
            if (asked.kind, asked.task) == (kind, absolute(task)) and not _is_complete(sweep):
                return sweep
    raise UserError(f"there is no unfinished {kind} sweep of '{task}' under '{out}'")


def read_record(sweep: SweepDir) -> SweepRecord | None:
    """Return what a sweep that ended or was stopped left; None where nothing can be read."""
    try:
        return sweep.read()
    except UserError:
        return None


def _is_complete(sweep: SweepDir) -> bool:
    record = read_record(sweep)
    return record is not None and record.status == "complete"
