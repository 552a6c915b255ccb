"""Tasks with a planted cause of lost time; `plain` has none."""

import os
import sys
import threading
import time
import zlib
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import SGD

import manyhands
from manyhands import Dataset, Split
from manyhands.data import load

SLOW_RANK_MS = 4.0
"""How long rank 1 sleeps in each step."""
LONG_STEP_MS, LONG_STEPS = 20.0, 0.05
"""How long a straggler sleeps, and in which share of the steps of each rank."""
SERIAL_MS = 4.0
"""How long each optimiser's step sleeps."""
START_MS = 4.0
"""How long each forward pass sleeps, however many rows it has."""
ROW_MS = 4.0
"""How long the forward pass sleeps for each row."""
READ_MS = 4.0
"""How long the data source sleeps for each batch."""
STREAM_ROWS, STREAM_BYTES = 64, 48 << 20
"""Rows for which the memory-bound network reads that many bytes."""


def rank() -> int:
    """Return the number of this rank: that of the thread, of the MPI process or of the torch process."""
    name = threading.current_thread().name
    if name.startswith("manyhands rank "):
        return int(name.rpartition(" ")[2])
    if "PMI_RANK" in os.environ:
        return int(os.environ["PMI_RANK"])
    is_torch = os.path.basename(sys.argv[0]) == "rank.py" and len(sys.argv) > 3
    return int(sys.argv[3]) if is_torch else 0


def is_long(of_rank: int, step: int) -> bool:
    """Return whether a step is a straggler's, at random but the same in each run."""
    return zlib.crc32(f"{of_rank} {step}".encode()) / 2**32 < LONG_STEPS


def mlp(hidden: int = 256) -> nn.Sequential:
    """Return the layers of the built-in mlp, or a network with a wider first layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, 10)
    )


class Planted(nn.Module):
    """A network whose training steps are delayed."""

    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        self.layers, self.step = mlp(hidden), 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.delay(len(x))
            self.step += 1
        outputs: Tensor = self.layers(x)
        return outputs

    def delay(self, rows: int) -> None:
        """Take some time in a training step of `rows` rows."""


class SlowRank(Planted):
    """Rank 1 is slow in each step."""

    def delay(self, rows: int) -> None:
        if rank() == 1:
            time.sleep(SLOW_RANK_MS / 1e3)


class Straggler(Planted):
    """Some steps of each rank are long."""

    def delay(self, rows: int) -> None:
        if is_long(rank(), self.step):
            time.sleep(LONG_STEP_MS / 1e3)


class Start(Planted):
    """A step takes its time however few rows it has."""

    def delay(self, rows: int) -> None:
        time.sleep(START_MS / 1e3)


class PerRow(Planted):
    """A step's time is that of its rows."""

    def delay(self, rows: int) -> None:
        time.sleep(rows * ROW_MS / 1e3)


class Streaming(Planted):
    """A step reads more memory than caches hold."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = torch.ones(STREAM_BYTES // 4)

    def delay(self, rows: int) -> None:
        for _ in range(rows // STREAM_ROWS):
            self.stream.sum()


class SlowSGD(SGD):
    """An optimiser whose step is long."""

    def step(self, closure=None):  # type: ignore[no-untyped-def, override]
        time.sleep(SERIAL_MS / 1e3)
        return super().step(closure)


class SlowSplit(Split):  # type: ignore[misc]
    """Samples on a slow disk: each batch takes a while to come."""

    def batch(self, indices: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        time.sleep(READ_MS / 1e3)
        return Split.batch(self, indices, dtype)  # slots: super() would not know this class


def slow_data() -> Dataset:
    """Return the usual samples from a slow source."""
    data = load(DATA)
    return replace(data, train=SlowSplit(data.train.x, data.train.y, scale=data.train.scale))


DATA = "mnist:train=10000,test=100"
SETTINGS = {"data": DATA, "batch_size": 512}

plain = manyhands.Task(model=lambda data: Planted(), **SETTINGS)
slow_rank = manyhands.Task(model=lambda data: SlowRank(), **SETTINGS)
straggler = manyhands.Task(model=lambda data: Straggler(), **SETTINGS)
serial = manyhands.Task(model=lambda data: Planted(), optimizer=lambda params, lr: SlowSGD(params, lr=lr), **SETTINGS)
gradients = manyhands.Task(model=lambda data: Planted(hidden=5200), **{**SETTINGS, "batch_size": 64})
small_batch = manyhands.Task(model=lambda data: Start(), **SETTINGS)
uneven = manyhands.Task(model=lambda data: PerRow(), **{**SETTINGS, "batch_size": 3})
data = manyhands.Task(model=lambda data: Planted(), **{**SETTINGS, "data": slow_data})
memory = manyhands.Task(model=lambda data: Streaming(), **SETTINGS)
others = plain
"""The planted cause is beside it: `run.py` starts a program that eats a core."""
