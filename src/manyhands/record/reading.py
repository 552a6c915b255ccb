"""Read what was stored: what is missing or damaged is an error in one sentence."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from manyhands.errors import UserError

Record = TypeVar("Record", bound=BaseModel)


def read_record(file: Path, kind: type[Record], name: str) -> Record:
    """Read the record in a file; its name is for people, such as `validation's record`."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no {name} in '{file.parent}'") from None
    except ValidationError:
        raise UserError(f"'{file}' is damaged: it is no {name}") from None
    except OSError as error:
        raise UserError(f"cannot read '{file}': {error.strerror}") from None


def oldest_first(files: Iterable[Path]) -> list[Path]:
    """Return files in the order in which they were last written."""
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file))
