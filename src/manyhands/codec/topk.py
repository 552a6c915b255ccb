"""Top-k: the largest values and their indices (Aji and Heafield 2017)."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from manyhands.codec.base import Codec, as_bytes, from_bytes
from manyhands.errors import check

INDEX = torch.int32


@final
@dataclass(kw_only=True, slots=True)
class TopK(Codec):
    """Send the values of largest magnitude and their indices; the others count as zero."""

    ratio: float = 0.01
    """Share of the values that are sent, at least one value."""

    def __post_init__(self) -> None:
        check(0 < self.ratio <= 1, f"ratio of codec 'topk' must be above 0 and at most 1, got {self.ratio:g}")

    def num_bytes(self) -> int:
        return self._num_kept() * (self._dtype.itemsize + INDEX.itemsize)

    def _encode(self, t: Tensor) -> Tensor:
        indices = t.abs().topk(self._num_kept(), sorted=False).indices
        return torch.cat([as_bytes(t[indices]), as_bytes(indices.to(INDEX))])

    def _decode(self, code: Tensor) -> Tensor:
        values, indices = code.split_with_sizes([self._num_kept() * d.itemsize for d in (self._dtype, INDEX)])
        t = torch.zeros(self._numel, dtype=self._dtype, device=code.device)
        t[from_bytes(indices, INDEX)] = from_bytes(values, self._dtype)
        return t

    def _num_kept(self) -> int:
        assert self._numel <= torch.iinfo(INDEX).max, "indices are 32-bit numbers"
        return min(self._numel, max(1, round(self.ratio * self._numel)))
