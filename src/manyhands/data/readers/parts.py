"""Which files and folders of a dataset are for training and which for the test: told by their names."""

import re
from collections.abc import Sequence
from pathlib import Path

from manyhands.errors import UserError, check

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")
"""Names of a test part; of several the first is taken."""
PART = re.compile(rf"({TRAIN}|{'|'.join(TESTS)})(?![A-Za-z])", re.IGNORECASE)


def part_folders(folder: Path) -> tuple[Path, Path | None]:
    """Return the folders to train on and to test on: `train` and `test` in it, or itself and None."""
    train = folder / TRAIN
    if not train.is_dir():
        return folder, None
    return train, next((folder / name for name in TESTS if (folder / name).is_dir()), None)


def files_in(source: Path, suffixes: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the files to train on and those to test on; of the latter none where rows are to be held out.

    A folder has its parts in folders or in files whose names begin with `train` and `test`.
    """
    if source.is_file():
        return [source], []
    check(source.is_dir(), f"there is no file or folder '{source}'")
    train, test = part_folders(source)
    if train == source:
        return by_name(_with_suffix(source, suffixes), str(source))
    return _with_suffix(train, suffixes), [] if test is None else _with_suffix(test, suffixes)


def by_name(files: Sequence[Path], source: str) -> tuple[list[Path], list[Path]]:
    """Share files out by what their names begin with; all are for training where none begins with `train`."""
    parts: dict[str, list[Path]] = {}
    for file in files:
        match = PART.match(file.name)
        parts.setdefault(match[1].lower() if match else "", []).append(file)
    tests = [name for name in TESTS if name in parts]
    if TRAIN not in parts:
        check(not tests, f"'{source}' has '{parts[tests[0]][0].name}' but no file named train…" if tests else "")
        return list(files), []
    check(
        "" not in parts,
        f"'{source}' has files named train… and '{parts.get('', files)[0].name}', which says no part; name it train… "
        f"or test…, or move it",
    )
    return parts[TRAIN], parts[tests[0]] if tests else []


def listed_folder(folder: Path) -> list[Path]:
    """Return what is in a folder, by name and without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"'{folder}' cannot be read: {error.strerror or error}") from None


def _with_suffix(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    files = [path for path in listed_folder(folder) if path.suffix.lower() in suffixes and path.is_file()]
    check(bool(files), f"'{folder}' has no file that ends in {' or '.join(suffixes)}")
    return files
