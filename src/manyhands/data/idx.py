"""The IDX format of the MNIST files: a short header, then unsigned bytes (yann.lecun.com/exdb/mnist)."""

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from manyhands.data.arrays import as_tensor
from manyhands.data.checks import NamedArrays, assemble
from manyhands.data.memory import check_fits
from manyhands.data.split import Dataset
from manyhands.errors import UserError, check

UNSIGNED_BYTE = 0x08
MOST_DIMENSIONS = 4
MAGIC_BYTES = 4
MOST_UNPACKED = 1032
"""Bytes to which gzip's method can unpack one byte."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def read_idx(source: bytes | Path) -> Tensor:
    """Return the bytes of an IDX file; an uncompressed one is mapped, so that only the rows in use are read."""
    if isinstance(source, bytes):
        return _tensor(np.frombuffer(bytearray(source), np.uint8), "the IDX data")
    try:
        data = _decompressed(source) if source.suffix == ".gz" else _mapped(source)
    except OSError as error:
        raise UserError(f"'{source}' cannot be read: {error.strerror or error}") from None
    return _tensor(data, f"'{source}'")


def load_idx_dir(folder: Path) -> Dataset:
    """Load a folder that holds the four files of MNIST, or others of the same names, plain or as .gz."""
    check(os.path.isdir(folder), f"there is no folder '{folder}'")
    return assemble("idx", _part(folder, "train"), _part(folder, "t10k"))


def _part(folder: Path, prefix: str) -> NamedArrays:
    images = _existing(folder / f"{prefix}-images-idx3-ubyte")
    labels = _existing(folder / f"{prefix}-labels-idx1-ubyte")
    return NamedArrays(read_idx(images), read_idx(labels), f"'{images}'", f"'{labels}'")


def _existing(path: Path) -> Path:
    for existing in (path, path.with_name(f"{path.name}.gz")):
        if existing.is_file():
            return existing
    raise UserError(f"there is no file '{path}', nor the same with .gz")


def _decompressed(path: Path) -> Bytes:
    """Unpack the bytes that the header promises and at most one more: a small file may unpack to a huge one."""
    try:
        with gzip.open(path) as f:
            head = f.read(MAGIC_BYTES + 4 * MOST_DIMENSIONS)
            expected = _expected(_shape(np.frombuffer(head, np.uint8), f"'{path}'"))
            at_most = min(expected, MOST_UNPACKED * path.stat().st_size)
            check_fits(at_most, f"'{path}'", "unpack it, and only the rows in use are read")
            data = np.empty(max(len(head), at_most + 1), np.uint8)
            data[: len(head)] = np.frombuffer(head, np.uint8)
            filled = len(head)
            while more := f.readinto(data[filled:].data):
                filled += more
            return data[:filled]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is not a whole gzip file: {error}") from None


def _mapped(path: Path) -> Bytes:
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, mode="c")  # copy-on-write: nobody writes, so nothing is copied


def _tensor(data: Bytes, name: str) -> Tensor:
    shape = _shape(data, name)
    expected = _expected(shape)
    word = "cut short" if len(data) < expected else "too long"
    check(
        len(data) == expected,
        f"{name} is {word}: its header asks for {expected} bytes, but {len(data)} were found",
    )
    sides = math.prod(max(1, side) for side in shape)
    check(sides < 2**63, f"{name} is damaged: its header gives the shape {shape}")  # where one side is 0
    return as_tensor(data[MAGIC_BYTES + 4 * len(shape) :], name).reshape(shape)


def _shape(data: Bytes, name: str) -> tuple[int, ...]:
    _check_length(data, MAGIC_BYTES, name)
    check(
        bytes(data[:2]) == b"\0\0" and data[3] > 0,
        f"{name} is not an IDX file: it begins with {bytes(data[:4]).hex()} where 0000{UNSIGNED_BYTE:02x}"
        f"01 to 0000{UNSIGNED_BYTE:02x}04 was expected",
    )
    check(
        data[2] == UNSIGNED_BYTE,
        f"{name} holds values of IDX type 0x{data[2]:02x}, but only bytes (0x{UNSIGNED_BYTE:02x}) are read",
    )
    dimensions = int(data[3])
    check(
        dimensions <= MOST_DIMENSIONS,
        f"{name} has {dimensions} dimensions, but an IDX file of images or labels has 1 to {MOST_DIMENSIONS}",
    )
    _check_length(data, MAGIC_BYTES + 4 * dimensions, name)
    return tuple(int(n) for n in data[MAGIC_BYTES : MAGIC_BYTES + 4 * dimensions].view(">u4"))


def _expected(shape: tuple[int, ...]) -> int:
    return MAGIC_BYTES + 4 * len(shape) + math.prod(shape)


def _check_length(data: Bytes, least: int, name: str) -> None:
    check(
        len(data) >= least,
        f"{name} is cut short: its header takes {least} bytes, but {len(data)} were found",
    )
