"""Files of typed columns, Parquet and Arrow, as pieces of rows; what the two have in common.

A table of features is read whole, piece by piece, into one matrix, and only the columns that are used. The order of
samples is shuffled over the whole data in every epoch, so each rank comes to need every row group in every epoch: ranks
that kept a few row groups would read the file anew for almost every batch. One matrix is smaller than the decoded
columns, and is checked against the free memory before anything is read. Arrow files are mapped into memory, so that
beside the matrix only the record batch that is being read is resident.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.data.memory import check_fits
from manyhands.errors import ManyhandsError, UserError, check, listed, unknown

PANDAS_INDEX = "__index_level_"
"""How the names of columns begin in which pandas stores the numbers of rows, which are no features."""


class TableFile(NamedTuple):
    """A file of rows with typed columns."""

    path: Path
    schema: Any
    """Its pyarrow schema."""
    rows: int
    pieces: int
    """Parts that can be read alone: row groups or record batches."""
    read: Callable[[int, list[str]], Any]
    """Returns some columns of a piece as a pyarrow table."""
    unpacked_bytes: int = 0
    """Bytes of memory that all columns take; of a file that is mapped into memory 0."""


class TypedTable(NamedTuple):
    """One or more files of the same columns."""

    files: list[TableFile]

    @property
    def path(self) -> Path:
        """Return the path of the first file, which stands for all in an error."""
        return self.files[0].path

    @property
    def rows(self) -> int:
        """Return the number of rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def names(self) -> list[str]:
        """Return the names of the columns, in the order of the first file."""
        return [name for name in self.files[0].schema.names if not name.startswith(PANDAS_INDEX)]

    def type_of(self, column: str) -> Any:
        """Return the pyarrow type of a column, of which all files must have the same."""
        kinds = []
        for file in self.files:
            if file.schema.get_field_index(column) < 0:
                check(file.schema.names.count(column) == 0, f"two columns of '{file.path}' are named '{column}'")
                unknown(f"column of '{file.path}' named", column, file.schema.names)
            kinds.append(file.schema.field(column).type)
            check(
                kinds[0] == kinds[-1],
                f"column '{column}' is {kinds[0]} in '{self.path}', but {kinds[-1]} in '{file.path}'",
            )
        return kinds[0]

    def pieces(self, columns: Sequence[str]) -> Iterator["RowGroup"]:
        """Yield the pieces of all files, with these columns alone; none is held back."""
        for file in self.files:
            start = 0
            for index in range(file.pieces):
                with readable(file.path):
                    table = file.read(index, list(columns))
                    table.validate(full=True)  # offsets of a damaged file would be followed anywhere
                yield RowGroup(file.path, start, table)
                start += table.num_rows
            check(start == file.rows, f"'{file.path}' says it has {file.rows} rows, but {start} are in it")


class RowGroup(NamedTuple):
    """Some columns of consecutive rows."""

    path: Path
    start: int
    """The number of its first row in its file."""
    table: Any
    """Its pyarrow table."""

    def column(self, name: str) -> Any:
        """Return a column as one pyarrow array without nulls."""
        import pyarrow as pa

        array = self.table.column(name).combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # what some versions return of no chunk
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        if array.null_count:
            row = array.is_null().to_pylist().index(True)
            raise UserError(f"{self.place(name, row)} has no value; fill it or remove the row")
        return array

    def place(self, name: str, row: int) -> str:
        """Return in words where a value is."""
        return f"row {self.start + row} of column '{name}' of '{self.path}'"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Say in one sentence what pyarrow says of a file that it cannot read."""
    try:
        yield
    except (ManyhandsError, MemoryError):
        raise
    except Exception as error:  # of damaged files pyarrow raises all kinds of errors
        reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"'{path}' cannot be read: {reason}") from None


def in_memory(table: TypedTable, columns: Sequence[str]) -> Any:
    """Return some columns of all files as one pyarrow table, whose memory is checked before."""
    import pyarrow as pa

    needed = sum(file.unpacked_bytes for file in table.files)
    check_fits(needed, f"'{table.path}'", "write it as an Arrow file, of which only the rows in use are read")
    return pa.concat_tables([piece.table for piece in table.pieces(columns)]).combine_chunks()


def check_names(schema: Any) -> None:
    """Raise what pyarrow raises of names that are no text, while the file is being opened."""
    for field in schema:
        _ = field.name, str(field.type)


def check_rows(table: TypedTable, source: Path) -> None:
    """Refuse a table without rows or without columns."""
    check(bool(table.names), f"'{source}' has no columns")
    check(table.rows > 0, f"'{source}' has columns but no rows: {listed(table.names)}")
