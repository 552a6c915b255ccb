"""Arrays saved by numpy, in one .npz or as .npy files in a folder; nothing in them is ever unpickled."""

import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from numpy.lib import format as npy
from torch import Tensor

from manyhands.data.arrays import PARSING, as_tensor
from manyhands.data.checks import NamedArrays, assemble
from manyhands.data.memory import check_fits
from manyhands.data.split import Dataset
from manyhands.errors import ManyhandsError, UserError, check

NAMES = ("x_train", "y_train", "x_test", "y_test")


def load_npz(file: Path) -> Dataset:
    """Load x_train, y_train, x_test and y_test; without a test set the last sixth of the rows is held out."""
    check(os.path.isfile(file), f"there is no file '{file}'")
    with _readable(f"'{file}'"), zipfile.ZipFile(file) as archive:
        stored = set(archive.namelist())
        unpacked = sum(archive.getinfo(f"{name}.npy").file_size for name in NAMES if f"{name}.npy" in stored)
        check_fits(unpacked, f"'{file}'", "save its arrays as .npy files: of npy:DIR only the rows in use are read")
        arrays = {name: _member(archive, name, file) for name in NAMES if f"{name}.npy" in stored}
    return assemble("npz", *_parts(arrays, file))


def load_npy_dir(folder: Path) -> Dataset:
    """Map x_train.npy and so on; without a test set the last sixth of the rows is held out."""
    check(os.path.isdir(folder), f"there is no folder '{folder}'")
    paths = {name: folder / f"{name}.npy" for name in NAMES}
    arrays = {name: _mapped(path) for name, path in paths.items() if path.is_file()}
    return assemble("npy", *_parts(arrays, folder))


def _member(archive: zipfile.ZipFile, name: str, file: Path) -> Tensor:
    what = f"{name} of '{file}'"
    with _readable(what), archive.open(f"{name}.npy") as stream, PARSING:
        array = npy.read_array(stream, allow_pickle=False)
    return as_tensor(array, what)


def _mapped(path: Path) -> Tensor:
    with _readable(f"'{path}'"), PARSING:
        array = npy.open_memmap(path, mode="c")  # copy-on-write: nobody writes, so nothing is copied
    return as_tensor(array, f"'{path}'")


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except ManyhandsError:
        raise
    except Exception as error:  # parsers of damaged zip files and headers raise all kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{what} cannot be read as an array of numbers: {reason}") from None


def _parts(arrays: Mapping[str, Tensor], source: Path) -> tuple[NamedArrays, NamedArrays]:
    needed = NAMES if {"x_test", "y_test"} & arrays.keys() else NAMES[:2]
    missing = [name for name in needed if name not in arrays]
    check(
        not missing,
        f"'{source}' has no {' and no '.join(missing)}; it needs x_train and y_train, and both or neither "
        f"of x_test and y_test",
    )
    train = NamedArrays(arrays["x_train"], arrays["y_train"], f"x_train of '{source}'", f"y_train of '{source}'")
    if len(needed) == 2:
        return _held_out(train)
    return train, NamedArrays(arrays["x_test"], arrays["y_test"], f"x_test of '{source}'", f"y_test of '{source}'")


def _held_out(part: NamedArrays) -> tuple[NamedArrays, NamedArrays]:
    check(
        part.x.ndim > 0 and part.y.ndim > 0 and len(part.x) == len(part.y) >= 2,
        f"{part.x_name} and {part.y_name} must have the same number of rows, at least two since one sixth "
        f"is held out for the test, but they have the shapes {tuple(part.x.shape)} and {tuple(part.y.shape)}",
    )
    kept = len(part.x) - max(1, len(part.x) // 6)
    test = NamedArrays(part.x[kept:], part.y[kept:], f"the held-out {part.x_name}", f"the held-out {part.y_name}")
    return part._replace(x=part.x[:kept], y=part.y[:kept]), test
