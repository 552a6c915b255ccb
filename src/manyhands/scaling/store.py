"""The folders of sweeps: create one, read its runs, find the one to resume."""

import contextlib
from pathlib import Path

from manyhands.errors import UserError, check
from manyhands.record.files import write_atomically
from manyhands.record.store import read_lines, stem_of, writing_below
from manyhands.record.sweep import Kind, Measure, SweepDir
from manyhands.request import absolute
from manyhands.scaling.request import SweepRequest


def open_sweep(out: Path, request: SweepRequest) -> SweepDir:
    """Create the folder of a new sweep; raise UserError where it cannot be written."""
    sweep = SweepDir.new(out, stem_of(request.task), request.kind)
    with writing_below(out):
        write_atomically(sweep.toml, request.to_toml())
    return sweep


def read_measures(sweep: SweepDir) -> list[Measure]:
    """Return the ended runs of a sweep."""
    return read_lines(sweep.measures, Measure, "a run of a sweep")


def sweep_to_resume(out: Path, kind: Kind, task: str, name: str = "") -> SweepDir:
    """Return the sweep to resume: the one with this name, or the newest incomplete one of this kind and task."""
    if name:
        sweep = SweepDir.find(out, name)
        request = SweepRequest.from_toml(sweep.toml)
        same, this = (request.kind, request.task) == (kind, absolute(task)), f"sweep '{sweep.path.name}'"
        check(same, f"{this} is a {request.kind} one of '{request.task}', not a {kind} one of '{task}'")
        check(not _is_complete(sweep), f"{this} is complete; there is nothing to go on with")
        return sweep
    for sweep in reversed(SweepDir.all_in(out)):
        with contextlib.suppress(UserError):  # skips damaged ones
            request = SweepRequest.from_toml(sweep.toml)
            if (request.kind, request.task) == (kind, absolute(task)) and not _is_complete(sweep):
                return sweep
    raise UserError(f"there is no unfinished {kind} sweep of '{task}' under '{out}'")


def _is_complete(sweep: SweepDir) -> bool:
    record = sweep.read_or_none()
    return record is not None and record.status == "complete"
