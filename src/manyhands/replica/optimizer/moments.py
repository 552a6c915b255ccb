"""An optimiser's state as two tensors, for checkpoints and for slices of the weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from manyhands.errors import check


class Moments(NamedTuple):
    """An optimiser's state of a slice of the weights."""

    elements: Tensor
    """A column for each weight; rows of quantities kept per weight (momentum; Adam's two), and behind them those that
    are kept per tensor, packed into its columns. No row before the first step of a single flat tensor."""
    scalars: Tensor
    """Quantities kept once, such as Adam's count of steps, as float64; NaN for what is not there or not in the slice.

    Where there are several tensors, a 1 stands in front of them for each quantity above that is there."""


def join(parts: Sequence[Moments]) -> Moments:
    """Join the states of consecutive slices."""
    scalars = parts[0].scalars
    for part in parts[1:]:
        scalars = torch.where(scalars.isnan(), part.scalars, scalars)
    return Moments(torch.cat([part.elements for part in parts], 1), scalars)


@final
@dataclass(frozen=True)
class Form:
    """What an optimiser keeps of one tensor."""

    alike: Mapping[str, torch.dtype]
    """Quantities in the tensor's own shape."""
    others: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    """Tensors of other shapes."""
    scalars: Mapping[str, Any]
    """Examples of what is kept once."""

    def rows(self, numel: int) -> int:
        """Return how many rows of `numel` columns hold the tensors."""
        return len(self.alike) + -(-sum(math.prod(shape) for shape, _ in self.others.values()) // max(1, numel))

    def num_scalars(self, *, flags: bool) -> int:
        """Return how many scalars there are, with a flag for each tensor or without."""
        return len(self.scalars) + flags * (len(self.alike) + len(self.others))

    def pack(self, state: Mapping[str, Any], tensor: Tensor, out: Tensor) -> None:
        """Write the tensors of a state into rows of zeros."""
        for row, key in zip(out, self.alike, strict=False):
            if state.get(key) is not None:
                row.as_strided(tensor.shape, tensor.stride()).copy_(state[key])
        if not self.others:
            return
        at = 0
        rest = out.new_zeros(len(out) - len(self.alike), out.shape[1])
        for key, (shape, _) in self.others.items():
            size = math.prod(shape)
            if state.get(key) is not None:
                rest.view(-1)[at : at + size] = state[key].reshape(-1)
            at += size
        out[len(self.alike) :] = rest

    def numbers(self, state: Mapping[str, Any], *, flags: bool) -> Iterator[float]:
        """Yield the flags and scalars of a state."""
        for key in (*self.alike, *self.others) if flags else ():
            yield 1.0 if state.get(key) is not None else math.nan
        for key in self.scalars:
            yield float(state[key]) if state.get(key) is not None else math.nan

    def unpack(self, rows: Tensor, numbers: Sequence[float], tensor: Tensor, *, flags: bool) -> dict[str, Any]:
        """Return the state that `pack` and `numbers` wrote."""
        tensors = (*self.alike, *self.others)
        there = dict(zip((*(tensors if flags else ()), *self.scalars), numbers, strict=True))
        state: dict[str, Any] = {}
        for row, (key, dtype) in zip(rows, self.alike.items(), strict=False):
            if not math.isnan(there.get(key, 1.0)):
                state[key] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)
                state[key].copy_(row.as_strided(tensor.shape, tensor.stride()))
        rest, at = rows[len(self.alike) :].reshape(-1), 0
        for key, (shape, dtype) in self.others.items():
            size = math.prod(shape)
            if not math.isnan(there[key]):
                state[key] = rest[at : at + size].view(shape).to(tensor.device, dtype, copy=True)
            at += size
        for key, like in self.scalars.items():
            if not math.isnan(there[key]):
                value = there[key]
                state[key] = torch.full_like(like, value) if isinstance(like, Tensor) else type(like)(value)
        return state


def form_of(state: Mapping[str, Any], tensor: Tensor, *, flat: bool) -> Form:
    """Return the form of a state that an optimiser has made for `tensor`; of a `flat` one it keeps no other shapes."""
    alike: dict[str, torch.dtype] = {}
    others: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    scalars: dict[str, Any] = {}
    for key, value in sorted((key, value) for key, value in state.items() if value is not None):
        plain = isinstance(value, int | float | bool | Tensor)
        check(plain, f"the optimiser's state '{key}' cannot be checkpointed or shared out")
        if not isinstance(value, Tensor) or value.dim() == 0:
            scalars[key] = value
            continue
        fits = torch.promote_types(value.dtype, tensor.dtype) == tensor.dtype
        check(fits, f"the optimiser's state '{key}' has type {value.dtype}, which {tensor.dtype} weights cannot hold")
        if value.shape == tensor.shape:
            alike[key] = value.dtype
        else:
            check(not flat, f"the optimiser's state '{key}' cannot be checkpointed or shared out")
            others[key] = (tuple(value.shape), value.dtype)
    return Form(alike, others, scalars)
