"""The IDX format of the MNIST files: a short header, then unsigned bytes (yann.lecun.com/exdb/mnist)."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.data.checks import Part, assemble
from manyhands.data.split import Dataset
from manyhands.errors import UserError, check

UNSIGNED_BYTE = 0x08

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def read_idx(source: bytes | Path) -> Tensor:
    """Read unsigned bytes; an uncompressed file is mapped, so that only the rows in use are read."""
    if isinstance(source, bytes):
        return _tensor(_writable(source), "the IDX data")
    try:
        data = _decompressed(source) if source.suffix == ".gz" else _mapped(source)
    except OSError as error:
        raise UserError(f"'{source}' cannot be read: {error.strerror or error}") from None
    return _tensor(data, f"'{source}'")


def load_idx_dir(folder: Path, *, train: int | None = None, test: int | None = None) -> Dataset:
    """Load a folder that holds the four files of MNIST, or others of the same names, plain or as .gz."""
    check(folder.is_dir(), f"there is no folder '{folder}'")
    return assemble("idx", _part(folder, "train"), _part(folder, "t10k"), num_train=train, num_test=test)


def _part(folder: Path, prefix: str) -> Part:
    images = _existing(folder / f"{prefix}-images-idx3-ubyte")
    labels = _existing(folder / f"{prefix}-labels-idx1-ubyte")
    return Part(read_idx(images), read_idx(labels), f"'{images}'", f"'{labels}'")


def _existing(path: Path) -> Path:
    compressed = path.with_name(f"{path.name}.gz")
    found = next((p for p in (path, compressed) if p.is_file()), None)
    if found is None:
        raise UserError(f"there is no file '{path}', nor the same with .gz")
    return found


def _decompressed(path: Path) -> Bytes:
    try:
        return _writable(gzip.decompress(path.read_bytes()))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is not a whole gzip file: {error}") from None


def _writable(data: bytes) -> Bytes:
    # torch warns of tensors over memory that must not be written to.
    return np.frombuffer(bytearray(data), np.uint8)


def _mapped(path: Path) -> Bytes:
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)
    # Copy-on-write, for the same warning: nobody writes, so nothing is copied.
    return np.memmap(path, np.uint8, mode="c")


def _tensor(data: Bytes, name: str) -> Tensor:
    shape = _shape(data, name)
    header = 4 + 4 * len(shape)
    expected = header + math.prod(shape)
    word = "cut short" if len(data) < expected else "too long"
    check(
        len(data) == expected,
        f"{name} is {word}: its header asks for {expected} bytes, but {len(data)} were found",
    )
    return torch.from_numpy(data[header:].reshape(shape))


def _shape(data: Bytes, name: str) -> tuple[int, ...]:
    _check_length(data, 4, name)
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
    _check_length(data, 4 + 4 * dimensions, name)
    return tuple(int(n) for n in data[4 : 4 + 4 * dimensions].view(">u4"))


def _check_length(data: Bytes, least: int, name: str) -> None:
    check(
        len(data) >= least,
        f"{name} is cut short: its header takes {least} bytes, but {len(data)} were found",
    )
