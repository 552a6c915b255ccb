"""A task whose disk becomes full, or whose run folder is deleted, while it trains; the environment says which."""

import contextlib
import os
import shutil

from torch import Tensor, nn

import manyhands


class Unlucky(nn.Module):
    """Does it in its 40th training forward pass, in whichever process comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            if self.passes == 40:
                if "LEAVE_BYTES" in os.environ:
                    fill(int(os.environ["LEAVE_BYTES"]))
                else:
                    shutil.rmtree("runs", ignore_errors=True)
        return self.layer(x.flatten(1))


def fill(leave: int) -> None:
    """Fill the disk of the current folder up to so many bytes."""
    with contextlib.suppress(OSError), open("filler", "xb", buffering=0) as f:
        space = os.statvfs(".")
        f.write(bytes(max(0, space.f_bavail * space.f_frsize - leave)))
        while not leave:
            f.write(b"\0")


task = manyhands.Task(model=lambda data: Unlucky(), data="mnist:train=2000,test=100", epochs=50)
