"""The loss of a batch, and how the losses of its slices add up to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, final

import torch
from torch import Tensor, nn

from manyhands.replica.nested import Nested

Loss = Callable[[Any, Any], Tensor]
"""Loss of a batch, from the network's output and the targets: their mean over the rows, unless the task says else."""

Reported = TypeVar("Reported", float, Tensor)

CROSS_ENTROPY, SIGMOID_ENTROPY = "cross-entropy", "sigmoid-cross-entropy"


def sigmoid_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Return the sigmoid cross-entropy against one-hot targets: summed over the outputs, mean over the rows."""
    target = nn.functional.one_hot(y, out.shape[1]).to(out.dtype)
    return nn.functional.binary_cross_entropy_with_logits(out, target, reduction="sum") / out.shape[0]


LOSSES: dict[str, Loss] = {
    CROSS_ENTROPY: nn.functional.cross_entropy,
    SIGMOID_ENTROPY: sigmoid_cross_entropy,
    "binary-cross-entropy": nn.functional.binary_cross_entropy_with_logits,
    "mse": nn.functional.mse_loss,
    "l1": nn.functional.l1_loss,
    "huber": nn.functional.huber_loss,
}
"""Losses by their names on tasks; the binary one takes outputs before their sigmoid."""
OF_CLASSES = (CROSS_ENTROPY, SIGMOID_ENTROPY)
"""Those whose targets are classes, so that accuracy means something."""
_CLASS_FUNCTIONS = (nn.functional.cross_entropy, nn.functional.nll_loss)
_CLASS_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)
IGNORED = -100
"""Target of a place that torch's losses of classes leave out, unless they are told another."""


@final
@dataclass(frozen=True)
class Criterion:
    """A loss of a batch's output and targets, and what a batch counts in a larger one."""

    loss: Loss
    name: str = ""
    """Its name, if it is not a user's own."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether it is the mean over the rows (a weighted one with `weight`), or their sum."""
    weight: Callable[[Nested], Tensor] | None = None
    """The total weight of rows, from their targets, where the loss is their weighted mean."""

    @property
    def of_classes(self) -> bool:
        """Whether its targets are classes: of the named losses, and of torch's own for classes."""
        return self.name in OF_CLASSES or self.loss in _CLASS_FUNCTIONS or isinstance(self.loss, _CLASS_MODULES)

    @property
    def ignored(self) -> int:
        """Target of the places that it leaves out, such as padding."""
        return int(getattr(self.loss, "ignore_index", IGNORED))

    def amount(self, y: Nested, rows: int) -> float:
        """Return what a batch counts in the mean over several: its rows, or their total weight."""
        if self.weight is None or rows == 0:
            return float(rows)
        with torch.no_grad():
            return float(self.weight(y))

    def reported(self, loss: Reported, rows: int) -> Reported:
        """Return a batch's loss as a mean over its rows, so that training and test losses can be compared."""
        return loss / rows if self.reduction == "sum" else loss


def as_criterion(loss: str | Loss | Criterion) -> Criterion:
    """Return a built-in loss by its name, or a user's own, which is a mean over the rows."""
    if isinstance(loss, Criterion):
        return loss
    return Criterion(LOSSES[loss], loss) if isinstance(loss, str) else Criterion(loss)
