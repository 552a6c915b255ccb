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
        """Return two bytes a value."""
        return 2 * self._numel

    def _encode(self, t: Tensor) -> Tensor:
        # An infinity would stay in the residual for ever; what is cut off here is sent by and by.
        return as_bytes(t.clamp(-LARGEST, LARGEST).half())

    def _decode(self, code: Tensor) -> Tensor:
        return from_bytes(code, torch.float16).to(self._dtype)
