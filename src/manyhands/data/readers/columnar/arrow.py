"""Arrow files and streams, mapped into memory; Hugging Face's `datasets` saves folders of these, and caches them."""

import json
import os
from pathlib import Path
from typing import Any

from manyhands.data.readers.columnar.table import TableFile, TypedTable, check_names, check_rows, readable
from manyhands.data.readers.extras import check_installed
from manyhands.data.readers.parts import files_in, part_folders
from manyhands.errors import UserError, check

SUFFIXES = (".arrow", ".feather", ".ipc")
FILE_MARK = b"ARROW1"
"""How a file with a footer begins; a stream has no mark."""
STATE = "state.json"
"""The file in which `datasets` lists the parts of a saved dataset."""


def open_arrow(source: Path) -> tuple[TypedTable, TypedTable | None]:
    """Return the table to train on, and the one to test on if files or folders are named so."""
    check_installed("pyarrow", "pyarrow", "arrow", "reading Arrow files")
    train, test = (TypedTable([_opened(file) for file in files]) for files in _files(source))
    check_rows(train, source)
    if not test.files:
        return train, None
    check_rows(test, test.path)
    return train, test


def _files(source: Path) -> tuple[list[Path], list[Path]]:
    if not source.is_dir():
        return files_in(source, SUFFIXES)
    train, test = part_folders(source)
    if not (train / STATE).is_file():
        return files_in(source, SUFFIXES)
    return _saved(train), _saved(test) if test and (test / STATE).is_file() else []


def _saved(folder: Path) -> list[Path]:
    """Return the files of a folder that `Dataset.save_to_disk` has written, in its order."""
    path = folder / STATE
    try:
        state = json.loads(path.read_bytes())
        names = [part["filename"] for part in state["_data_files"]]
        picked = state.get("_indices_data_files") or state.get("_indices_files")
        plain = all(isinstance(name, str) and os.path.basename(name) == name for name in names)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        names, picked, plain = [], None, False
    check(plain and bool(names), f"'{path}' does not list the files of a saved dataset; save it again")
    check(not picked, f"'{folder}' holds a pick of rows, not the rows; call flatten_indices() before saving it")
    missing = next((name for name in names if not (folder / name).is_file()), None)
    if missing is not None:
        raise UserError(f"'{path}' names '{missing}', but there is no file '{folder / missing}'")
    return [folder / name for name in names]


def _opened(path: Path) -> TableFile:
    import pyarrow as pa

    with readable(path):
        check(path.stat().st_size > 0, f"'{path}' is empty")
        # The map stays open as long as a batch refers to it.
        stream = pa.memory_map(str(path))
        if stream.read(len(FILE_MARK)) == FILE_MARK:
            file = pa.ipc.open_file(stream)
            schema, pieces, batch = file.schema, file.num_record_batches, file.get_batch
        else:
            stream.seek(0)
            reader = pa.ipc.open_stream(stream)
            batches = list(reader)
            schema, pieces, batch = reader.schema, len(batches), batches.__getitem__
        check_names(schema)
        rows = sum(batch(index).num_rows for index in range(pieces))  # held by nobody: compressed ones are unpacked

    def read(index: int, columns: list[str]) -> Any:
        return pa.Table.from_batches([batch(index)]).select(columns)

    return TableFile(path, schema, rows, pieces, read)
