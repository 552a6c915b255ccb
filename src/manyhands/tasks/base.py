"""A task: what is learned, and the settings it is learned with unless the user gives others."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from manyhands.data import Dataset
from manyhands.errors import check, kind_of, unknown
from manyhands.replica.build import LOSSES
from manyhands.spec import with_field_docs

GPU_ROWS = 16
"""How many times the rows of a CPU's `micro_batch` a GPU takes at once."""

FULL: Literal["full"] = "full"

OPTIMIZERS: dict[str, Callable[[list[Tensor], float], Optimizer]] = {
    "sgd": lambda params, lr: torch.optim.SGD(params, lr=lr),
    "momentum": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "adam": lambda params, lr: torch.optim.Adam(params, lr=lr, fused=True),
    "adamw": lambda params, lr: torch.optim.AdamW(params, lr=lr, fused=True),
}


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class Task:
    """A network with its data, loss and optimiser, and the settings that a run has unless the user gives others."""

    model: nn.Module | Callable[[Dataset], nn.Module]
    """A function that makes the network, to which the data's `shape` and `classes` tell its sizes; or the network
    itself, of which each replica is a deep copy: its initial weights are the same on every rank, and for every seed."""
    data: str | Dataset | Callable[[], Dataset] = "mnist"
    """A data spec such as `npz:digits.npz`, a `Dataset`, or a function that returns one. All ranks must get the same
    data: what it draws from the process-wide generators of Python, numpy and torch is seeded, a
    `numpy.random.default_rng()` needs a seed of its own."""
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross-entropy"
    """A name, or a function (output, target) → mean loss over the batch."""
    optimizer: str | Callable[[list[Tensor], float], Optimizer] = "sgd"
    """A name, or a function (parameters, learning rate) → an optimiser that treats every element alike."""
    lr: float = 0.01
    """Learning rate."""
    batch_size: int | Literal["full"] = 64
    """Global batch size; `full` for all samples at once."""
    epochs: int = 1
    """Passes over the training data."""
    micro_batch: int = 0
    """Rows computed at once on a CPU, to stay in cache and bound memory (a GPU takes 16 times as many); 0 for all."""
    top: int = 1
    """How many best guesses count: a sample is a hit when its label is among them."""
    eval_every: int = 1
    """Epochs between two evaluations on the test data."""
    replicate: int = 1
    """How often the training data is repeated."""
    name: str = ""
    """Its name in tables; the file's or variable's name if empty."""

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            unknown("loss", self.loss, LOSSES)
        if isinstance(self.optimizer, str) and self.optimizer not in OPTIMIZERS:
            unknown("optimizer", self.optimizer, OPTIMIZERS)
        check(
            callable(self.model),
            f"model must be an nn.Module, or a function that takes the data and returns one, got {kind_of(self.model)}",
        )
        check(
            isinstance(self.data, str | Dataset) or callable(self.data),
            "data must be a data spec such as 'mnist', a manyhands.Dataset, or a function that returns one, "
            f"got {kind_of(self.data)}",
        )
        check(
            isinstance(self.loss, str) or callable(self.loss),
            f"loss must be a name, or a function (output, target) → mean loss, got {kind_of(self.loss)}",
        )
        check(
            isinstance(self.optimizer, str) or callable(self.optimizer),
            "optimizer must be a name, or a function (parameters, learning rate) → optimiser, "
            f"got {kind_of(self.optimizer)}",
        )

    def make_model(self, data: Dataset) -> nn.Module:
        """Return a new network, for one replica."""
        module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model(data)
        check(
            isinstance(module, nn.Module),
            f"model must be an nn.Module, or a function that takes the data and returns one, "
            f"but it returned {kind_of(module)}",
        )
        return module

    def make_optimizer(self, params: list[Tensor], lr: float) -> Optimizer:
        """Return a new optimiser of `params`."""
        make = OPTIMIZERS[self.optimizer] if isinstance(self.optimizer, str) else self.optimizer
        return make(params, lr)
