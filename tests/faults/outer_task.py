"""A task that trains until somebody ends it, or whose rank `EXITS` leaves in its fifth step without a word."""

import os
import time

from torch import Tensor, nn

import manyhands


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.passes = nn.Linear(784, 10), 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            time.sleep(0.01)
            if self.passes > 5 and os.environ.get("EXITS") == os.environ.get("PMI_RANK", "none"):
                os._exit(7)
        return self.layer(x.flatten(1))


task = manyhands.Task(model=lambda data: Slow(), data="mnist:train=1000,test=100", epochs=500)
