"""Random layers that draw by position, so that a draw does not depend on which worker computes the row.

Each element's bits are a hash of (seed, step, draw, row of the global batch, place in the row), computed with
32-bit integer arithmetic: the same on every worker, thread and device, and with no generator to share.
"""

import math
import random
import sys
import warnings
from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from types import FrameType
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

COMMON = -1
"""In the place of a dimension: the draw has nothing to do with the rows, and is one for the whole batch."""

Places = Mapping[Hashable, int | None]
"""The batch dimension of the draws of each site: COMMON where there is none, None where it is not known.

A site is the number of a layer, or a tuple that names a line of code that draws.
"""
Shapes = dict[Hashable, list[tuple[int, ...] | None]]
"""The shapes of the draws of each site in a pass; None for a draw that backward would make again."""


@final
class Draws:
    """The position of a forward pass in the run: the key of the step, and the rows of the global batch."""

    def __init__(self) -> None:
        self.places: Places = {}
        self.intercepts = False
        """Whether lines of code draw, and not layers alone: the pass is to run inside `KeyedDraws`."""
        self.shapes: Shapes | None = None
        """If it is a dict, the shapes of all draws are noted in it, and all draws are COMMON."""
        self.still = False
        """Whether every draw is the same number: a trial's, which shows what draws have to do with a difference."""
        self.whole = False
        """Whether all draws are COMMON, in a pass over a batch that is never cut, such as a chunk of test rows."""
        self.at(0, 0, 1)

    def learn(self, places: Places) -> None:
        """Draw along these dimensions from now on."""
        self.places = places
        self.intercepts = any(isinstance(site, tuple) for site in places)

    def at(self, key: int, first: int, rows: int) -> None:
        """Move to `rows` rows from `first` on, in the step with this key."""
        self.first, self.rows = first, max(1, rows)
        self._key, self._calls, self._left = key, 0, False

    def next_key(self) -> int:
        """Return a new key for each draw of a forward pass, also where one layer draws twice."""
        self._calls += 1
        return mix_key(self._key, self._calls)

    @_disable_dynamo
    def bits(self, site: Hashable, shape: Sequence[int], device: torch.device) -> Tensor | None:
        """Return 32-bit hashes of this shape, by the rows along its batch dimension.

        None if that is not known, and if the dimension is no multiple of the rows: a guess could be wrong in silence.
        """
        key, shape = self.next_key(), tuple(shape)
        dim = self._dim(site, shape)
        if self.still:
            return torch.full(shape, 2**31 - 1, dtype=torch.int32, device=device)
        if dim == COMMON:
            return uniform_bits(key, 0, 1, torch.Size(shape).numel(), device).view(shape)
        if dim is None:
            self._leave()
            return None
        if dim >= len(shape) or shape[dim] % self.rows:
            _warn_of_new_draw()
            self._leave()
            return None
        rest = shape[:dim] + shape[dim + 1 :]
        first = self.first * (shape[dim] // self.rows)
        bits = uniform_bits(key, first, shape[dim], torch.Size(rest).numel(), device)
        return bits.view(shape[dim], *rest).movedim(0, dim)

    def _leave(self) -> None:
        """Seed the process-wide generators once in a pass, for a draw that they make: the same in a repeated run.

        Other passes leave them alone, since threads beside this one may read samples that draw from them.
        """
        if not self._left:
            self._left = True
            seed_generators(self._key ^ self.first)

    def _dim(self, site: Hashable, shape: tuple[int, ...]) -> int | None:
        if self.shapes is not None:
            self.shapes.setdefault(site, []).append(None if _is_recomputed() else shape)
            return COMMON
        if self.whole:
            return COMMON
        if site in self.places:
            return self.places[site]
        if isinstance(site, tuple):
            _warn_of_new_draw()
            return None
        return 0  # a layer that no trial reached, in a network that has its batch first like most


def _is_recomputed() -> bool:
    """Tell whether an activation checkpoint calls: backward calls it again, with the state of torch's generator."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


def _warn_of_new_draw() -> None:
    warnings.warn(
        "the model draws random numbers in a way that its trial pass did not; they come from a process-wide generator, "
        "and differ with the number of workers",
        stacklevel=2,
    )


def uniform_bits(key: int, first_row: int, rows: int, width: int, device: torch.device) -> Tensor:
    """Return (rows, width) 32-bit hashes of (key, row, column)."""
    row = torch.arange(first_row, first_row + rows, dtype=torch.int32, device=device).unsqueeze(1)
    column = torch.arange(width, dtype=torch.int32, device=device).unsqueeze(0)
    h = _mix_(row * _signed(0x9E3779B1) + _signed(key)) + column * _signed(0x85EBCA77)
    return _mix_(h.bitwise_xor_(torch.tensor(_signed(key >> 32), dtype=torch.int32, device=device)))


def mix_key(*parts: int) -> int:
    """Hash whole numbers to 64 bits (splitmix64 over the parts)."""
    h = 0
    for part in parts:
        h = (h ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
        h ^= h >> 31
    return h


def seed_generators(key: int) -> None:
    """Seed the process-wide generators of torch, numpy and Python, for models that draw from one of them."""
    torch.manual_seed(key)
    np.random.seed(key % 2**32)
    random.seed(key)


_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix_(h: Tensor) -> Tensor:
    """Spread every bit over the whole word (the finaliser of MurmurHash3); int32 products wrap around."""
    h = h.bitwise_xor_((h >> 16) & 0xFFFF).mul_(_signed(0x85EBCA6B))
    h = h.bitwise_xor_((h >> 13) & 0x7FFFF).mul_(_signed(0xC2B2AE35))
    return h.bitwise_xor_((h >> 16) & 0xFFFF)


def kept(bits: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """Return 0 with probability `p`, else 1."""
    if p >= 1:
        return torch.zeros_like(bits, dtype=dtype)
    return (bits >= int(p * 2**32) - 2**31).to(dtype)


def dropout_mask(bits: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of a dropout: 0 with probability `p`, else 1 / (1 - p)."""
    mask = kept(bits, p, dtype)
    return mask.div_(1 - p) if p < 1 else mask


def uniform(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in [0, 1) of as many binary digits as the type has, at most 32."""
    digits = _digits(dtype)
    return (bits >> (32 - digits)).to(wide(dtype)).add_(2 ** (digits - 1)).mul_(2.0**-digits).to(dtype)


def open_uniform(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in (0, 1), neither end included, whose distance to both ends is the same."""
    return _centred(bits, _digits(dtype) - 1, dtype).add_(1).mul_(0.5).to(dtype)


def normal(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers, by the inverse error function: at most 5.4 in float32, 6.3 in float64."""
    float_type = wide(dtype)
    return torch.erfinv(_centred(bits, _digits(float_type), float_type)).mul_(math.sqrt(2)).to(dtype)


def _centred(bits: Tensor, digits: int, dtype: torch.dtype) -> Tensor:
    """Return odd multiples of 2^-digits in (-1, 1): floats hold these without rounding, and 0 and the ends are out."""
    k = bits >> (32 - digits)
    return k.to(wide(dtype)).mul_(2).add_(1).mul_(2.0**-digits)


def _digits(dtype: torch.dtype) -> int:
    return min(32, 1 - round(math.log2(torch.finfo(dtype).eps)))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which random numbers of a type are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


DropoutLayer = type[nn.Dropout] | type[nn.Dropout1d] | type[nn.Dropout2d] | type[nn.Dropout3d]
_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@final
class KeyedDropout(nn.Module):
    """Dropout whose mask depends only on the position in the run."""

    def __init__(self, p: float, kind: DropoutLayer, draws: Draws, site: int = 0) -> None:
        """Draw for layer number `site` as the layers of torch's class `kind` do."""
        super().__init__()
        self.p, self.kind, self.draws, self.site = p, kind, draws, site

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.numel() == 0:
            return x
        bits = self.draws.bits(self.site, self._mask_shape(x), x.device)
        if bits is None:
            left_to_torch: Tensor = self.kind(self.p)(x)
            return left_to_torch
        return x * dropout_mask(bits, self.p, x.dtype)

    def _mask_shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the shape of what is dropped at once: elements, or channels.

        To torch, two dimensions in `Dropout1d` and four in `Dropout3d` are one sample, whose channels come first.
        """
        if self.kind is nn.Dropout:
            return tuple(x.shape)
        alone = (self.kind, x.dim()) in ((nn.Dropout1d, 2), (nn.Dropout3d, 4))
        channels = 1 if alone else 2
        return (*x.shape[:channels], *(1 for _ in x.shape[channels:]))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def key_random_layers(module: nn.Module, draws: Draws) -> None:
    """Replace every dropout layer below `module` by one that draws by position."""
    numbers = count()
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # named_children() skips a layer that it has met before
            if type(child) in _KINDS:
                assert isinstance(child, _KINDS)
                setattr(parent, name, KeyedDropout(child.p, type(child), draws, next(numbers)).train(child.training))
