"""The folders of reproductions: the runs that have ended, and which reproduction to go on with."""

import secrets
import time
from pathlib import Path

from manyhands import facts
from manyhands.errors import UserError, check
from manyhands.record import write_atomically
from manyhands.record.files import writing
from manyhands.record.papers import ReproductionDir, ReproductionRecord, Taken


def open_folder(out: Path, record: ReproductionRecord) -> ReproductionDir:
    """Make the folder of a new reproduction; one that cannot be written is a user error."""
    quick = "-quick" if record.quick else ""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{record.asked}{quick}-{secrets.token_hex(2)}"
    folder = ReproductionDir(out / name)
    try:
        folder.path.mkdir(parents=True)
        write_atomically(folder.record, record.model_copy(update={"id": name}).model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write to --out '{out}': {error.strerror}") from None
    return folder


def append(folder: ReproductionDir, taken: Taken) -> None:
    """Write down a run as soon as it has ended."""
    with writing(folder.taken), open(folder.taken, "a", encoding="utf-8") as f:
        f.write(f"{taken.model_dump_json()}\n")


def read_taken(folder: ReproductionDir) -> list[Taken]:
    """Return the runs that went well before; what failed, or was cut off in the last line, is run again."""
    if not folder.taken.is_file():
        return []
    whole, _, torn = folder.taken.read_bytes().rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    try:
        taken = [Taken.model_validate_json(line.decode()) for line in lines]
    except ValueError:
        raise UserError(f"'{folder.taken}' is damaged: its lines are not runs of a reproduction") from None
    if torn:
        write_atomically(folder.taken, "".join(f"{line.decode()}\n" for line in lines))
    return [one for one in taken if not one.failed]


def to_resume(out: Path, asked: str, *, quick: bool) -> ReproductionDir:
    """Return the newest reproduction of this paper that was stopped, if it was begun on this machine."""
    files = sorted(out.glob("*/reproduction.json"), key=lambda path: path.parent.name)
    what = f"reproduction of '{asked}'{' with --quick' if quick else ''}"
    for file in reversed(files):
        folder = ReproductionDir(file.parent)
        try:
            record = folder.read()
        except UserError:  # a damaged one is not what is looked for
            continue
        if (record.asked, record.quick, record.status) == (asked, quick, "interrupted"):
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
