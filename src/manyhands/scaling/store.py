"""The folders of sweeps: what was asked for, the runs that have ended, and which sweep to go on with."""

import contextlib
from pathlib import Path

from manyhands.errors import UserError, check
from manyhands.record import Kind, Measure, SweepDir, write_atomically
from manyhands.record.store import read_lines, stem_of, writing_below
from manyhands.request import absolute
from manyhands.scaling.request import SweepRequest


def open_sweep(out: Path, asked: SweepRequest) -> SweepDir:
    """Make the folder of a new sweep; one that cannot be written is a user error."""
    sweep = SweepDir.new(out, stem_of(asked.task), asked.kind)
    with writing_below(out):
        write_atomically(sweep.toml, asked.to_toml())
    return sweep


def read_measures(sweep: SweepDir) -> list[Measure]:
    """Return the runs of a sweep that have ended."""
    return read_lines(sweep.measures, Measure, "a run of a sweep")


def sweep_to_resume(out: Path, kind: Kind, task: str, name: str = "") -> SweepDir:
    """Return the sweep of this name to go on with, or the newest one of this kind and task that is not complete."""
    if name:
        sweep = SweepDir.find(out, name)
        asked = SweepRequest.from_toml(sweep.toml)
        same = (asked.kind, asked.task) == (kind, absolute(task))
        check(same, f"sweep '{sweep.path.name}' is a {asked.kind} one of '{asked.task}', not a {kind} one of '{task}'")
        check(not _is_complete(sweep), f"sweep '{sweep.path.name}' is complete; there is nothing to go on with")
        return sweep
    for sweep in reversed(SweepDir.all_in(out)):
        with contextlib.suppress(UserError):  # a damaged one is not what is looked for
            asked = SweepRequest.from_toml(sweep.toml)
            if (asked.kind, asked.task) == (kind, absolute(task)) and not _is_complete(sweep):
                return sweep
    raise UserError(f"there is no unfinished {kind} sweep of '{task}' under '{out}'")


def _is_complete(sweep: SweepDir) -> bool:
    record = sweep.read_or_none()
    return record is not None and record.status == "complete"
