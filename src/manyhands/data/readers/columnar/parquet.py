"""Parquet files: columns of numbers, lists or text, and columns of labels."""

from pathlib import Path
from typing import Any

from manyhands.data.readers.columnar.table import TableFile, TypedTable, check_names, check_rows, readable
from manyhands.data.readers.extras import check_installed
from manyhands.data.readers.parts import files_in

SUFFIXES = (".parquet", ".pq")


def open_parquet(source: Path) -> tuple[TypedTable, TypedTable | None]:
    """Return the table to train on, and the one to test on if files or folders are named so."""
    check_installed("pyarrow", "pyarrow", "arrow", "reading Parquet files")
    train, test = (TypedTable([_opened(file) for file in files]) for files in files_in(source, SUFFIXES))
    check_rows(train, source)
    if not test.files:
        return train, None
    check_rows(test, test.path)
    return train, test


def _opened(path: Path) -> TableFile:
    from pyarrow.parquet import ParquetFile

    with readable(path):
        # Threads of pyarrow's would not live on in processes that are forked to read ahead.
        with ParquetFile(path, pre_buffer=False) as file:
            schema, rows, pieces = file.schema_arrow, file.metadata.num_rows, file.num_row_groups
            check_names(schema)
            unpacked = sum(file.metadata.row_group(i).total_byte_size for i in range(pieces))
        return TableFile(path, schema, rows, pieces, lambda index, columns: _row_group(path, index, columns), unpacked)


def _row_group(path: Path, index: int, columns: list[str]) -> Any:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, pre_buffer=False) as file:
        return file.read_row_group(index, columns, use_threads=False)
