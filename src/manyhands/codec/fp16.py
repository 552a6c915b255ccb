"""Half precision: every value in 16 bits."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from manyhands.codec.base import Codec, as_bytes, from_bytes

LARGEST = torch.finfo(torch.float16).max


@final
@dataclass(kw_only=True, slots=True)
class Half(Codec):
    """Send every value in half precision."""

    def num_bytes(self) -> int:
        return 2 * self._numel

    def _encode(self, t: Tensor) -> Tensor:
        # An infinity would stay in the residual for ever; a clamped value is sent over several steps.
        return as_bytes(t.clamp(-LARGEST, LARGEST).half())

    def _decode(self, code: Tensor) -> Tensor:
        return from_bytes(code, torch.float16).to(self._dtype)
