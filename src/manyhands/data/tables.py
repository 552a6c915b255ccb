"""Arrays as users have them: numpy, lists of numbers, pandas, scikit-learn's Bunch."""

from typing import Any

import numpy as np
from torch import Tensor

from manyhands.errors import UserError, check, kind_of, shown


def as_arrays(value: Any, what: str) -> Any:
    """Return the same nest with lists of numbers, DataFrames and Series as numpy arrays; tensors and arrays stay."""
    if value is None or isinstance(value, Tensor | np.ndarray):
        return value
    if _is_of(value, "pandas"):
        return _of_pandas(value, what)
    if isinstance(value, dict):
        return {name: as_arrays(part, f"'{name}' of {what}") for name, part in value.items()}
    if isinstance(value, tuple):
        parts = [as_arrays(part, f"part {i} of {what}") for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return _of_list(value, what)
    check(
        not hasattr(value, "toarray"),
        f"{what} are sparse ({type(value).__name__}), which no network takes; give their toarray()",
    )
    raise UserError(f"{what} must be a tensor, an array, a DataFrame or lists of numbers, got {kind_of(value)}")


def is_array(value: Any) -> bool:
    """Tell whether a value is one array of rows, as a list of numbers, a DataFrame and a tensor are."""
    return isinstance(value, Tensor | np.ndarray | list) or hasattr(value, "toarray") or _is_of(value, "pandas")


def is_bunch(value: Any) -> bool:
    """Tell whether a value is what scikit-learn's loaders return, with its `data` and `target`."""
    return _is_of(value, "sklearn") and hasattr(value, "data") and hasattr(value, "target")


def _is_of(value: Any, package: str) -> bool:
    """Tell whether a value's class comes from a package, which is not imported for that."""
    return any(cls.__module__.partition(".")[0] == package for cls in type(value).__mro__)


def _of_list(value: list[Any], what: str) -> Any:
    if any(isinstance(part, Tensor | np.ndarray) and part.ndim for part in value):
        return [as_arrays(part, f"part {i} of {what}") for i, part in enumerate(value)]
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    lengths = {len(row) for row in value if isinstance(row, list | tuple)}
    check(
        array.dtype.kind != "O" or len(lengths) < 2,
        f"{what} are lists of different lengths, from {min(lengths, default=0)} to {max(lengths, default=0)} values; "
        "pad them, or give a torch Dataset with a collate function",
    )
    check(array.dtype.kind in "biuf", f"{what} must hold numbers, but the first row is {shown(value[:1])[1:-1]}")
    return array


def _of_pandas(value: Any, what: str) -> Any:
    """Return the values of a DataFrame or a Series, all of whose columns must be numbers."""
    columns = list(value.dtypes.items()) if hasattr(value, "columns") else [(value.name, value.dtype)]
    for name, dtype in columns:
        check(
            getattr(dtype, "kind", "O") in "biuf" and str(dtype) != "category",
            f"column '{name}' of {what} holds {_kind(dtype)}, not numbers; leave it out, or turn it into numbers, "
            "such as by pandas.factorize or pandas.get_dummies",
        )
    array = value.to_numpy()
    return array if array.dtype.kind in "biuf" else value.to_numpy(dtype="float64", na_value=float("nan"))


def _kind(dtype: Any) -> str:
    return "text" if str(dtype) in ("object", "str", "string") else f"values of type {dtype}"
