"""Random layers that draw by position, so that a draw does not depend on which worker computes the row.

Each element's bits are a hash of (seed, step, draw, row of the global batch, place in the row), computed with
32-bit integer arithmetic: the same on every worker, thread and device, and with no generator to share.
"""

import random
from typing import final

import numpy as np
import torch
from torch import Tensor, nn


@final
class Draws:
    """The position of a forward pass in the run: the key of the step, and the rows of the global batch."""

    def __init__(self) -> None:
        self.at(0, 0, 1)

    def at(self, key: int, first: int, rows: int) -> None:
        """Move to `rows` rows from `first` on, in the step with this key."""
        self.first, self.rows = first, rows
        self._key, self._calls = key, 0

    def next_key(self) -> int:
        """Return a new key for each draw of a forward pass, also where one layer draws twice."""
        self._calls += 1
        return mix_key(self._key, self._calls)


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


@final
class KeyedDropout(nn.Module):
    """Dropout whose mask depends only on the position in the run; it drops whole channels if `channels` is true."""

    def __init__(self, p: float, channels: bool, draws: Draws) -> None:
        super().__init__()
        self.p, self.channels, self.draws = p, channels, draws

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.shape[0] == 0:
            return x
        return x * self._mask(x)

    def _mask(self, x: Tensor) -> Tensor:
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.channels else x.shape
        rows_per_sample = max(1, x.shape[0] // self.draws.rows)
        width = int(torch.Size(shape[1:]).numel())
        bits = uniform_bits(self.draws.next_key(), self.draws.first * rows_per_sample, x.shape[0], width, x.device)
        keep = bits >= _signed(int(self.p * 2**32) - 2**31) if self.p < 1 else torch.zeros_like(bits)
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return keep.to(x.dtype).mul_(scale).view(shape)

    def extra_repr(self) -> str:
        return f"p={self.p}"


_CHANNELS: dict[type[nn.Module], bool] = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}


def key_random_layers(module: nn.Module, draws: Draws) -> None:
    """Replace every dropout layer below `module` by one that draws by position."""
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # named_children() skips a layer that it has met before
            if child is not None and type(child) in _CHANNELS:
                keyed = KeyedDropout(child.p, _CHANNELS[type(child)], draws)  # type: ignore[arg-type]
                setattr(parent, name, keyed.train(child.training))
