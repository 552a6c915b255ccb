"""Tensors without memory, for virtual ranks: operations on them compute nothing, but advance the rank's clock."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor

HEAD = 16
"""How many values at the beginning are really kept, where a strategy reads the header of a message."""

Charge = Callable[[int], None]
"""Advances the rank's clock by the time that it takes to read or write this number of bytes."""


@final
class Hollow(Tensor):
    """A tensor with a shape and a type but no values; operations on it are charged by the bytes they would touch."""

    # Looked up in every call; as attributes of this class they do not go through `__torch_function__`.
    is_meta = True
    is_cuda = False
    nbytes = 0
    charge: Charge
    head: Tensor | None
    """The first values, where they are kept."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Return a result of the right shape, and charge the call."""
        name, tensor = func.__name__, _first(args)
        if name == "__getitem__" and tensor.head is not None and _in_head(tensor, args[1]):
            return tensor.head[args[1]]
        if name == "__setitem__":
            _set_item(tensor, args[1], args[2])
            return None
        if name.endswith("_") and not name.endswith("__"):
            tensor.charge(tensor.nbytes)
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return _wrapped(result, tensor, name)


def hollow(shape: Sequence[int], dtype: torch.dtype, charge: Charge) -> Hollow:
    """Return a tensor of this shape and type without memory."""
    return _wrap(torch.empty(tuple(shape), dtype=dtype, device="meta"), charge)


def copied(t: Tensor) -> Tensor:
    """Return a copy of the values that a message carries: of a hollow tensor, its head."""
    if not t.is_meta:
        return t.clone()
    return t.head.clone() if isinstance(t, Hollow) and t.head is not None else t


def store(into: Tensor, value: Tensor) -> None:
    """Write the values of a message or a reduction into a tensor; a hollow one keeps its head at most."""
    if not into.is_meta:
        into.copy_(value)
    elif isinstance(into, Hollow) and into.head is not None and not value.is_meta:
        into.head.copy_(value)


def _wrap(t: Tensor, charge: Charge, *, with_head: bool = False) -> Hollow:
    with torch._C.DisableTorchFunctionSubclass():
        wrapped: Hollow = Tensor._make_subclass(Hollow, t)
        wrapped.nbytes, wrapped.charge = t.nbytes, charge
        wrapped.head = torch.zeros(min(HEAD, t.numel()), dtype=t.dtype) if with_head and t.dim() == 1 else None
    return wrapped


def _wrapped(result: Any, source: Hollow, name: str) -> Any:
    """Return a call's result with all tensors hollow; charge the call unless they are views or uninitialised."""
    if isinstance(result, tuple | list):
        return type(result)(_wrapped(item, source, name) for item in result)
    if not isinstance(result, Tensor):
        return result
    if not (result._is_view() or "empty" in name):
        source.charge(max(source.nbytes, result.nbytes))
    return _wrap(result, source.charge, with_head=name == "new_zeros")


def _set_item(tensor: Hollow, index: Any, value: Any) -> None:
    if not _in_head(tensor, index):
        with torch._C.DisableTorchFunctionSubclass():
            tensor.charge(tensor[index].nbytes)
    elif not (isinstance(value, Tensor) and value.is_meta):
        assert tensor.head is not None
        tensor.head[index] = value


def _in_head(tensor: Hollow, index: Any) -> bool:
    """Return whether all values at `index` are among those that are kept."""
    if tensor.head is None:
        return False
    stop = index.stop if isinstance(index, slice) else index + 1 if isinstance(index, int) else None
    return stop is not None and 0 < stop <= len(tensor.head)


def _first(args: Sequence[Any]) -> Hollow:
    """Return the first hollow tensor among a call's arguments, which may be lists of tensors."""
    for arg in args:
        if isinstance(arg, Hollow):
            return arg
        if isinstance(arg, tuple | list) and any(isinstance(item, Hollow) for item in arg):
            return _first(arg)
    raise AssertionError("torch calls this only where an argument is hollow")
