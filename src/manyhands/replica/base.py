"""A replica: one copy of the network, with its weights and gradients in one flat tensor each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

OptimizerFactory = Callable[[list[Tensor]], Optimizer]
"""Makes the optimiser of one flat parameter; it must treat every element alike (SGD, Adam, ...)."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Mean loss over a batch, from the network's output and the targets."""


class Batch(NamedTuple):
    """Some rows of a global batch."""

    x: Tensor
    y: Tensor
    first: int = 0
    """Position of the first row in the global batch: random layers draw by position."""
    key: int = 0
    """What random layers draw from, besides the position: a number made of the seed and the step."""


class Replica(ABC):
    """One copy of the network.

    `params` starts with the trainable weights and ends with the running statistics that a forward pass moves
    (BatchNorm); `grads` has the gradients and the moves at the same places. So whatever exchanges gradients or
    weights keeps the statistics equal too.
    """

    params: Tensor
    grads: Tensor
    module: nn.Module
    optimizer: Optimizer

    @abstractmethod
    def forward_backward(self, batch: Batch, weight: float) -> Tensor:
        """Put `weight` times the gradient of the batch's mean loss into `grads`; return `weight` times the loss."""

    @abstractmethod
    def apply(self) -> None:
        """Let the optimiser change `params` by `grads`."""

    @abstractmethod
    def on_grad_ready(self, fn: Callable[[int, int], None]) -> None:
        """Call `fn(start, stop)` during each `forward_backward`, whenever that part of its `grads` is final."""


def stepper(optimizer: Optimizer) -> Callable[[], object]:
    """Return what makes one step; plain SGD over one flat tensor is a single addition."""
    (group,) = optimizer.param_groups
    plain = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
    if type(optimizer) is not SGD or any(group[name] for name in plain):
        return optimizer.step
    (weights,) = group["params"]
    # The group is looked up anew, since loading a state replaces it.
    return torch.no_grad()(lambda: weights.add_(weights.grad, alpha=-optimizer.param_groups[0]["lr"]))


Piece = tuple[Batch, float]
"""Some rows, and their share in the mean over the global batch."""


def sum_of_lanes(replica: Replica, lanes: Sequence[Iterable[Piece]]) -> Tensor:
    """Leave in `grads` the sum over all pieces of all lanes; return the sum of their losses.

    A lane's pieces are added in order, the lanes in a balanced binary tree. The tree makes the sum independent of
    which rank computes which lanes, as long as each owns a whole subtree (see `comm.exact`).
    """
    if len(lanes) == 1:
        return _sum_of_pieces(replica, lanes[0])
    middle = len(lanes) // 2
    left_loss = sum_of_lanes(replica, lanes[:middle])
    left = replica.grads.clone()
    right_loss = sum_of_lanes(replica, lanes[middle:])
    replica.grads.copy_(left.add_(replica.grads))
    return left_loss + right_loss


def _sum_of_pieces(replica: Replica, pieces: Iterable[Piece]) -> Tensor:
    loss, total = None, None
    for batch, weight in pieces:
        if loss is None:
            loss = replica.forward_backward(batch, weight)
            continue
        total = replica.grads.clone() if total is None else total.add_(replica.grads)
        loss = loss + replica.forward_backward(batch, weight)
    if total is not None:
        replica.grads.add_(total)
    assert loss is not None, "a lane has at least one piece, which may be empty"
    return loss
