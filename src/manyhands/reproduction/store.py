"""The folders of reproductions: read the runs of one, find the one to resume."""

from pathlib import Path

from manyhands.errors import UserError, check
from manyhands.machine import facts
from manyhands.record.papers import ReproductionDir, Taken
from manyhands.record.store import read_lines


def read_taken(folder: ReproductionDir) -> list[Taken]:
    """Return the successful runs; one that failed, or whose line was cut off, is run again."""
    return [run for run in read_lines(folder.taken, Taken, "a run of a reproduction") if not run.failed]


def to_resume(out: Path, number: str, *, quick: bool) -> ReproductionDir:
    """Return the newest interrupted reproduction of a paper; raise UserError if it was begun on another machine."""
    what = f"reproduction of '{number}'{' with --quick' if quick else ''}"
    for folder in reversed(ReproductionDir.all_in(out)):
        record = folder.read_or_none()  # skips damaged ones
        if record and (record.asked, record.quick, record.status) == (number, quick, "interrupted"):
            here = facts.hardware()
            check(
                all(record.hardware.get(name) == here[name] for name in ("host", "cpu", "cores", "gpus")),
                f"reproduction '{record.id}' was begun on {record.hardware.get('host')} with "
                f"{record.hardware.get('cores')} cores; times of two machines cannot be mixed, "
                "so leave --resume out to begin a new one",
            )
            return folder
    raise UserError(f"there is no unfinished {what} under '{out}'; leave --resume out to begin one")
