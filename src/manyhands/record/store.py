"""One store for all records: a folder for each, named by the time, and found again by its id, part of it, or `last`."""

import contextlib
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from pydantic import BaseModel, ValidationError

from manyhands.errors import UserError, check, unknown
from manyhands.record.files import alone_in, write_atomically

Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class FileIn:
    """A file or folder in a record's folder: `toml = FileIn("run.toml")` makes `run.toml` its path."""

    name: str

    def __get__(self, folder: "Folder[Any]", kind: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class Folder(Generic[Record]):
    """The folder of one record; every kind of record has a subclass that names the files in it."""

    path: Path

    kind: ClassVar[str]
    record_class: ClassVar[type[BaseModel]]
    record_name: ClassVar[str]
    """The record's name in messages, such as `sweep's record`."""
    record_file: ClassVar[str]
    dated_by: ClassVar[tuple[str, ...]]
    """Files that only this kind of folder has; the time of their last change says which folder is the newest."""

    def __init_subclass__(
        cls, kind: str, record: type[BaseModel], *, file: str = "", name: str = "", dated_by: tuple[str, ...] = ()
    ) -> None:
        super().__init_subclass__()
        cls.kind, cls.record_class, cls.record_name = kind, record, name or f"{kind}'s record"
        cls.record_file = file or f"{kind}.json"
        cls.dated_by = dated_by or (cls.record_file,)

    @property
    def record(self) -> Path:
        """The path of the record's file."""
        return self.path / self.record_file

    def read(self) -> Record:
        """Return the record; one that is missing or damaged is a user error."""
        return read_record(self.record, cast(type[Record], self.record_class), self.record_name)

    def read_or_none(self) -> Record | None:
        """Return the record, or None where it is missing or damaged."""
        with contextlib.suppress(UserError):
            return self.read()
        return None

    def write(self, record: Record) -> None:
        """Write the record as JSON, atomically."""
        write_record(self.record, record)

    def make(self, *, exist_ok: bool = True) -> None:
        """Make the folder; one that cannot be made is a user error."""
        with writing_below(self.path.parent):
            self.path.mkdir(parents=True, exist_ok=exist_ok)

    @classmethod
    def new(cls, out: Path, *words: str) -> Self:
        """Make a folder below `out`, named by the time and `words`."""
        folder = cls(out / new_name(*words))
        folder.make(exist_ok=False)
        return folder

    @classmethod
    @contextlib.contextmanager
    def kept_if_used(cls, out: Path, *words: str) -> Iterator[Self]:
        """Make a new folder for the work in the `with` block; if that raises, remove the folder where it is empty."""
        folder = cls.new(out, *words)
        try:
            yield folder
        except BaseException:
            with contextlib.suppress(OSError):
                folder.path.rmdir()
            raise

    @classmethod
    def all_in(cls, out: Path) -> list[Self]:
        """Return the folders of this kind below `out`, the last changed one at the end."""
        written_ns: dict[Path, int] = {}
        for file in (file for name in cls.dated_by for file in out.glob(f"*/{name}")):
            with contextlib.suppress(OSError):  # just deleted
                written_ns[file.parent] = max(written_ns.get(file.parent, 0), file.stat().st_mtime_ns)
        return [cls(path) for path in sorted(written_ns, key=lambda path: (written_ns[path], path))]

    @classmethod
    def find(cls, out: Path, name: str) -> Self:
        """Return the folder with this id, unique part of an id, or path; `last` is the newest."""
        if (Path(name) / cls.dated_by[0]).is_file():
            return cls(Path(name).resolve() if Path(name).name in ("", "..") else Path(name))
        folders = cls.all_in(out)
        check(bool(folders), f"there are no {cls.kind}s under '{out}'")
        if name == "last":
            return folders[-1]
        fitting = [f for f in folders if name == f.path.name] or [f for f in folders if name in f.path.name]
        check(len(fitting) <= 1, f"'{name}' fits {len(fitting)} {cls.kind}s under '{out}'; give more of the id")
        if not fitting:
            unknown(f"{cls.kind} under '{out}' named", name, [f.path.name for f in folders[-5:]])
        return fitting[0]


def new_name(*words: str, letters: int = 4) -> str:
    """Return the time, `words`, and random letters that keep the name unique, joined by dashes."""
    return "-".join([time.strftime("%Y%m%d-%H%M%S"), *words, secrets.token_hex(letters // 2)])


def stem_of(task: str) -> str:
    """Return the part of a task's name that folders are named by: `my_task` of `path/my_task.py:net`."""
    return Path(task.partition(":")[0]).stem


@contextlib.contextmanager
def writing_below(out: Path) -> Iterator[None]:
    """Turn a failure to write below the folder of `--out` into a user error."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise UserError(f"cannot write to --out '{out}': {getattr(error, 'strerror', error)}") from None


def read_record(path: Path, kind: type[Record], name: str) -> Record:
    """Return the record in a file; `name` is its name in messages, such as `sweep's record`."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no {name} in '{path.parent}'") from None
    except ValidationError:
        raise UserError(f"'{path}' is damaged: it is no {name}") from None
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from None


def write_record(path: Path, record: BaseModel, *, indent: int | None = 2) -> None:
    """Write a record as JSON, atomically."""
    write_atomically(path, record.model_dump_json(indent=indent) + "\n")


def read_lines(path: Path, kind: type[Record], name: str, *, blank_lines: bool = False) -> list[Record]:
    """Return the records in a file of JSON lines; an incomplete last line is ignored.

    `name` is what messages call a line, such as `a run of a sweep`; `blank_lines` allows empty lines.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from None
    records = []
    for number, line in enumerate(lines, 1):
        if blank_lines and not line.strip():
            continue
        try:
            records.append(kind.model_validate_json(line))
        except ValidationError:
            raise UserError(f"'{path}' is damaged: line {number} is not {name}") from None
    return records


def append_lines(path: Path, records: Iterable[BaseModel]) -> None:
    """Append records to a file of JSON lines; an incomplete last line of a killed writer is removed first."""
    try:
        with alone_in(path.parent), open(path, "ab+") as file:  # another writer's last line may be incomplete for now
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.writelines(f"{record.model_dump_json()}\n".encode() for record in records)
    except OSError as error:
        raise UserError(f"cannot write to '{path}': {error.strerror}") from None
