"""Convert arrays that come from outside to tensors."""

import threading
import warnings
from typing import Any

import numpy as np
import torch
from numpy import ma  # whose import parses syntax: before ranks run in threads
from torch import Tensor

from manyhands.errors import UserError, check, kind_of

PARSING = threading.RLock()
"""Held while numpy reads a file: it parses the header as Python syntax, and threads that do so at the same time fail
with a SystemError before Python 3.11.9 and 3.12.3 (CPython issue 106905)."""

# Numpy types that torch does not know, or can hardly compute with.
WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "float64", "float128": "float64"}


def as_tensor(values: Any, what: str) -> Tensor:
    """Return a tensor or a numpy array of numbers as a tensor, which shares its memory where torch knows its type."""
    if isinstance(values, Tensor):
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
