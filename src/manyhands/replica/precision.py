"""Products in a shorter number type: autocast, and a scale of the loss under which fp16 gradients do not vanish."""

from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch
from torch import Tensor

from manyhands.config import Precision
from manyhands.replica.peers import Peers

FIRST_SCALE = 2.0**16
GROW_AFTER = 2000
"""Steps without an overflow after which the scale is doubled."""

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which the network's products have this number type."""
    if precision in SHORT:
        return torch.autocast(device.type, SHORT[precision])
    return nullcontext()


def set_products(precision: Precision, device: torch.device) -> None:
    """Let this process multiply float32 matrices on a GPU as the precision says; a CPU has no tf32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


@final
class LossScale:
    """The factor of the loss, the same on every worker; halved after an overflow, doubled after many steps without."""

    def __init__(self, precision: Precision) -> None:
        self.active = precision == "fp16"
        self.state = torch.tensor([FIRST_SCALE if self.active else 1.0, 0.0], dtype=torch.float64)
        """The factor, and the steps since it changed; a checkpoint holds it."""

    @property
    def factor(self) -> float:
        """The factor of the loss in the next pass."""
        return float(self.state[0]) if self.active else 1.0

    def accepts(self, grads: Tensor, peers: Peers) -> bool:
        """Tell whether no worker's gradients overflowed, and adapt the factor: every worker gets the same answer."""
        if not self.active:
            return True
        overflows = (~grads.isfinite().all()).to(torch.float64).reshape(1).cpu()
        if float(peers.sum_(overflows)) > 0:
            self.state[0], self.state[1] = max(1.0, self.factor / 2), 0
            return False
        self.state[1] += 1
        if self.state[1] >= GROW_AFTER:
            self.state[0], self.state[1] = self.factor * 2, 0
        return True
