"""Eight bits a value: whole numbers from -127 to 127 and one scale for each chunk."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from manyhands.codec.base import Codec, as_bytes, from_bytes
from manyhands.errors import check

SCALE = torch.float32
LEVELS = 127
LARGEST = torch.finfo(SCALE).max / 128
"""The largest scale: 127 times more is still a finite number."""


@final
@dataclass(kw_only=True, slots=True)
class Int8(Codec):
    """Send every value as a whole number from -127 to 127, in units of its chunk's largest value over 127."""

    chunk: int = 1024
    """Values that share one scale."""

    def __post_init__(self) -> None:
        check(self.chunk >= 1, f"chunk of codec 'int8' must be at least 1, got {self.chunk}")

    def num_bytes(self) -> int:
        return SCALE.itemsize * self._num_chunks() + self._numel

    def _encode(self, t: Tensor) -> Tensor:
        chunks = self._in_chunks(t)
        # The chunks are a copy already, so they are changed in place: new memory costs more than the arithmetic.
        largest = torch.maximum(chunks.amax(dim=1, keepdim=True), -chunks.amin(dim=1, keepdim=True))
        scale = (largest / LEVELS).clamp_(max=LARGEST).to(SCALE)
        levels = chunks.div_(torch.where(scale > 0, scale, 1)).round_().clamp_(-LEVELS, LEVELS).to(torch.int8)
        return torch.cat([as_bytes(scale), as_bytes(levels)[: self._numel]])

    def _decode(self, code: Tensor) -> Tensor:
        scale, levels = code.split_with_sizes([SCALE.itemsize * self._num_chunks(), self._numel])
        chunks = self._in_chunks(levels.view(torch.int8).to(self._dtype))
        return chunks.mul_(from_bytes(scale, SCALE)[:, None]).view(-1)[: self._numel]

    def _num_chunks(self) -> int:
        return -(-self._numel // self._chunk())

    def _chunk(self) -> int:
        return max(1, min(self.chunk, self._numel))

    def _in_chunks(self, t: Tensor) -> Tensor:
        """Return a copy with one row per chunk, the last one padded with zeros."""
        rows = t.new_zeros(self._num_chunks() * self._chunk())
        rows[: self._numel] = t
        return rows.view(-1, self._chunk())
