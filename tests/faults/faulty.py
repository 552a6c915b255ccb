"""Tasks that go wrong on purpose."""

import threading
import time

from torch import Tensor, nn

import manyhands


class Faulty(nn.Module):
    """Fails in its n-th training forward pass, in the way its mode says."""

    def __init__(self, mode: str, after: int = 40) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)
        self.mode, self.after, self.passes = mode, after, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            if self.passes == self.after:
                self.fail()
            if self.mode == "slow":
                time.sleep(0.02)
        return self.layer(x.flatten(1))

    def fail(self) -> None:
        if self.mode == "raise":
            raise RuntimeError("the model has had enough")
        if self.mode == "hang":
            time.sleep(600)
        if self.mode == "stick":
            if threading.current_thread().name.endswith(" 0"):
                time.sleep(600)
            raise RuntimeError("the other one is stuck")


def task(mode: str) -> manyhands.Task:
    return manyhands.Task(model=lambda data: Faulty(mode), data="mnist:train=2000,test=100", epochs=50)


raises, hangs, slow, sticks = map(task, ("raise", "hang", "slow", "stick"))
