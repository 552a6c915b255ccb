"""Tensors that hold no memory, for ranks that are not there: what is done to them is not done, but takes its time."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor

HEAD = 16
"""Values at the beginning that are kept where a strategy may read them: messages begin with what they are."""

Charge = Callable[[int], None]
"""Lets the rank's clock run for the time that it takes to go through so many bytes."""


@final
class Hollow(Tensor):
    """A tensor of which only shape and type are known; whatever goes through its values is charged by their bytes."""

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
        """Find out what a call gives and how many bytes it goes through; leave out the work."""
        name, own = func.__name__, _first(args)
        if name == "__getitem__" and own.head is not None and _in_head(own, args[1]):
            return own.head[args[1]]
        if name == "__setitem__":
            _set_item(own, args[1], args[2])
            return None
        if name.endswith("_") and not name.endswith("__"):
            own.charge(own.nbytes)
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return _wrapped(result, own, name)


def hollow(shape: Sequence[int], dtype: torch.dtype, charge: Charge) -> Hollow:
    """Make a tensor of this shape without memory."""
    return _wrap(torch.empty(tuple(shape), dtype=dtype, device="meta"), charge)


def copied(t: Tensor) -> Tensor:
    """Return what a message keeps of a tensor that may change after it was sent."""
    if not t.is_meta:
        return t.clone()
    return t.head.clone() if isinstance(t, Hollow) and t.head is not None else t


def store(into: Tensor, value: Tensor) -> None:
    """Put a message's or a reduction's values where they belong, as far as anything is kept of them."""
    if not into.is_meta:
        into.copy_(value)
    elif isinstance(into, Hollow) and into.head is not None and not value.is_meta:
        into.head.copy_(value)


def _wrap(t: Tensor, charge: Charge, *, with_head: bool = False) -> Hollow:
    with torch._C.DisableTorchFunctionSubclass():
        made: Hollow = Tensor._make_subclass(Hollow, t)
        made.nbytes, made.charge = t.nbytes, charge
        made.head = torch.zeros(min(HEAD, t.numel()), dtype=t.dtype) if with_head and t.dim() == 1 else None
    return made


def _wrapped(result: Any, own: Hollow, name: str) -> Any:
    """Make tensors hollow that a call gave, and charge it unless they are views or still to be filled."""
    if isinstance(result, tuple | list):
        return type(result)(_wrapped(each, own, name) for each in result)
    if not isinstance(result, Tensor):
        return result
    if not (result._is_view() or "empty" in name):
        own.charge(max(own.nbytes, result.nbytes))
    return _wrap(result, own.charge, with_head=name == "new_zeros")


def _set_item(own: Hollow, index: Any, value: Any) -> None:
    if not _in_head(own, index):
        with torch._C.DisableTorchFunctionSubclass():
            own.charge(own[index].nbytes)
    elif not (isinstance(value, Tensor) and value.is_meta):
        assert own.head is not None
        own.head[index] = value


def _in_head(own: Hollow, index: Any) -> bool:
    """Tell whether an index names some of the values that are kept."""
    if own.head is None:
        return False
    last = index.stop if isinstance(index, slice) else index + 1 if isinstance(index, int) else None
    return last is not None and 0 < last <= len(own.head)


def _first(args: Sequence[Any]) -> Hollow:
    """Return the first hollow tensor among a call's arguments, which may be lists of tensors."""
    for each in args:
        if isinstance(each, Hollow):
            return each
        if isinstance(each, tuple | list) and any(isinstance(one, Hollow) for one in each):
            return _first(each)
    raise AssertionError("torch asks only where one of the arguments is hollow")
