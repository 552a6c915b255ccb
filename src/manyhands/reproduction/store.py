"""The folders of reproductions: the runs that have ended, and which reproduction to go on with."""

from pathlib import Path

from manyhands.errors import UserError, check
from manyhands.machine import facts
from manyhands.record.papers import ReproductionDir, ReproductionRecord, Taken
from manyhands.record.store import read_lines, writing_below


def open_folder(out: Path, record: ReproductionRecord) -> ReproductionDir:
    """Make the folder of a new reproduction; one that cannot be written is a user error."""
    folder = ReproductionDir.new(out, record.asked, *(["quick"] if record.quick else []))
    with writing_below(out):
        folder.write(record.model_copy(update={"id": folder.path.name}))
    return folder


def read_taken(folder: ReproductionDir) -> list[Taken]:
    """Return the runs that went well before; one that failed, or whose line was cut off, is run again."""
    return [run for run in read_lines(folder.taken, Taken, "a run of a reproduction") if not run.failed]


def to_resume(out: Path, asked: str, *, quick: bool) -> ReproductionDir:
    """Return the newest reproduction of this paper that was stopped, if it was begun on this machine."""
    what = f"reproduction of '{asked}'{' with --quick' if quick else ''}"
    for folder in reversed(ReproductionDir.all_in(out)):
        record = folder.read_or_none()  # a damaged one is not what is looked for
        if record and (record.asked, record.quick, record.status) == (asked, quick, "interrupted"):
            _check_same_machine(record)
            return folder
    raise UserError(f"there is no unfinished {what} under '{out}'; leave --resume out to begin one")


def _check_same_machine(record: ReproductionRecord) -> None:
    here = facts.hardware()
    same = all(record.hardware.get(name) == here[name] for name in ("host", "cpu", "cores", "gpus"))
    check(
        same,
        f"reproduction '{record.id}' was begun on {record.hardware.get('host')} with {record.hardware.get('cores')} "
        f"cores; times of two machines cannot be mixed, so leave --resume out to begin a new one",
    )
