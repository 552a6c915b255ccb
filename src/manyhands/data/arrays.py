"""Convert arrays that come from outside to tensors."""

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy import ma  # whose import parses syntax: before ranks run in threads
from torch import Tensor

from manyhands.errors import UserError, check, kind_of
from manyhands.replica.nested import Nested

PARSING = threading.RLock()
"""Held while numpy reads a file: it parses the header as Python syntax, and threads that do so at the same time fail
with a SystemError before Python 3.11.9 and 3.12.3 (CPython issue 106905)."""

# Numpy types that torch does not know, or can hardly compute with.
WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "float64", "float128": "float64"}


def as_tensor(values: Any, what: str) -> Tensor:
    """Return a tensor or a numpy array of numbers as a tensor, which shares its memory where torch knows its type."""
    if isinstance(values, Tensor):
        check(values.layout == torch.strided, f"{what} must not be sparse; give their to_dense()")
        return values
    if not isinstance(values, np.ndarray):
        raise UserError(f"{what} must be a tensor or a numpy array, got {kind_of(values)}")
    check(not isinstance(values, ma.MaskedArray), f"{what} must not be masked; fill or leave out what is missing")
    check(values.dtype.kind in "biuf", f"{what} must hold numbers, but it is of type {values.dtype}")
    known = WIDER.get(values.dtype.name, values.dtype.newbyteorder("="))
    array = values.astype(known, copy=False)
    if any(stride < 0 for stride in array.strides):  # which torch does not take
        array = np.ascontiguousarray(array)
    if not array.flags.writeable and not isinstance(array, np.memmap):
        array = array.copy()  # a model that writes to its inputs would end the process
    with warnings.catch_warnings():
        # A memory map may be larger than the memory, so it is taken as it is.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def as_tensors(nested: Any, what: str) -> Nested:
    """Return the same nest of dicts, tuples and lists with every array as a tensor; None stays."""
    if nested is None:
        return None
    if isinstance(nested, dict):
        return {name: as_tensors(part, _part(what, name)) for name, part in nested.items()}
    of_parts = isinstance(nested, list) and any(isinstance(part, Tensor | np.ndarray | dict) for part in nested)
    if isinstance(nested, tuple) or of_parts:
        parts = [as_tensors(part, _part(what, i)) for i, part in enumerate(nested)]
        return type(nested)(*parts) if hasattr(nested, "_fields") else type(nested)(parts)
    return as_tensor(nested, what)


def named_tensors(nested: Nested, what: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a nest, each with its name in errors."""
    if isinstance(nested, Tensor):
        yield what, nested
    elif isinstance(nested, dict | tuple | list):
        for name, part in nested.items() if isinstance(nested, dict) else enumerate(nested):
            yield from named_tensors(part, _part(what, name))


def _part(what: str, name: Any) -> str:
    return f"{what}, part {name!r},"
