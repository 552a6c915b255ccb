"""Nested tensors: inputs and targets may be a tensor, tuples, lists and dicts of them, or nothing."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Nested = Any
"""A tensor, None, or a tuple, list or dict of nested tensors; what else stands in it is left as it is."""


def tensors_in(nested: Nested) -> Iterator[Tensor]:
    """Yield the tensors, in a fixed order."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, dict):
        for part in nested.values():
            yield from tensors_in(part)
    elif isinstance(nested, tuple | list):
        for part in nested:
            yield from tensors_in(part)


def map_tensors(function: Callable[[Tensor], Any], nested: Nested) -> Nested:
    """Return the same nest with `function` of each tensor in its place."""
    if isinstance(nested, Tensor):
        return function(nested)
    if isinstance(nested, dict):
        return {name: map_tensors(function, part) for name, part in nested.items()}
    if isinstance(nested, tuple) and hasattr(nested, "_fields"):  # a NamedTuple
        return type(nested)(*(map_tensors(function, part) for part in nested))
    if isinstance(nested, tuple | list):
        return type(nested)(map_tensors(function, part) for part in nested)
    return nested


def num_rows(nested: Nested) -> int:
    """Return the length of the first tensor: the number of rows, where a nest's tensors have one for each."""
    return next((len(t) for t in tensors_in(nested) if t.dim()), 0)


def rows_of(nested: Nested, rows: slice | Tensor) -> Nested:
    """Return some rows of every tensor that has as many as the first; what has not is left whole."""
    whole = num_rows(nested)
    return map_tensors(lambda t: t[rows] if t.dim() and len(t) == whole else t, nested)


def moved(nested: Nested, device: torch.device) -> Nested:
    """Return the same nest on another device."""
    return map_tensors(lambda t: t.to(device), nested)


def with_floats(nested: Nested, dtype: torch.dtype) -> Nested:
    """Return the same nest with every floating-point tensor as `dtype`; whole numbers stay."""
    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, nested)


def call(module: nn.Module, x: Nested) -> Any:
    """Call a network as its inputs ask for: a tuple is its arguments, a dict its keyword arguments.

    A dict goes in as one argument where `forward` does not name its keys.
    """
    if isinstance(x, tuple):
        return module(*x)
    if isinstance(x, dict) and _takes_names(module, x):
        return module(**x)
    return module(x)


def set_training(module: nn.Module) -> nn.Module:
    """Put a network into training mode, but for the layers that its maker left in evaluation mode, and return it.

    So the BatchNorm of a frozen backbone keeps its statistics. A network that is in evaluation mode as a whole trains
    as a whole.
    """
    kept = [layer for layer in module.modules() if not layer.training] if module.training else []
    module.train()
    for layer in kept:
        layer.training = False
    return module


def _takes_names(module: nn.Module, names: dict[str, Any]) -> bool:
    try:
        inspect.signature(module.forward).bind(**names)
    except TypeError:
        return False
    return True
