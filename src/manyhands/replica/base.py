"""A replica: one copy of the network, with its weights and gradients in one flat tensor each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyhands.config import Precision
from manyhands.replica.criterion import Criterion
from manyhands.replica.nested import Nested, moved, num_rows
from manyhands.replica.peers import Peers
from manyhands.replica.update import Update


class Batch(NamedTuple):
    """Consecutive rows of a global batch."""

    x: Nested
    """The network's inputs."""
    y: Nested
    """The targets; None where the data has none."""
    first: int = 0
    """Position of the first row in the global batch: random layers draw by position."""
    key: int = 0
    """Hash of the seed and the step, from which random layers draw."""
    told_rows: int | None = None
    """Number of rows, where the first tensor of `x` may not tell it; 0 for an empty batch, whatever stands in it."""
    share: float | None = None
    """The rows' share of the global batch, by which they change running statistics; None where it is their weight."""

    @property
    def rows(self) -> int:
        """Number of rows that count."""
        return num_rows(self.x) if self.told_rows is None else self.told_rows

    def to(self, device: torch.device) -> "Batch":
        """Return the same rows on another device."""
        return self._replace(x=moved(self.x, device), y=moved(self.y, device))


class Replica(ABC):
    """One copy of the network.

    `params` starts with the trainable weights and ends with the running statistics that a forward pass changes
    (BatchNorm); `grads` has the gradients and the statistics' changes at the same places. So a strategy that exchanges
    gradients or weights keeps the statistics equal too.
    """

    params: Tensor
    grads: Tensor
    spans: dict[str, tuple[int, int]]
    """Start and stop of each weight and each running statistic in `params`, by its name in the network."""
    module: nn.Module
    update: Update
    criterion: Criterion
    peers: Peers
    """The other workers, for layers and losses that need them in the middle of a pass."""
    meets: bool = False
    """Whether its layers meet the peers in each pass: then every worker makes one pass a step, also without rows."""
    precision: Precision = "fp32"
    """Number type of the network's products."""
    skips: bool = False
    """Whether `apply` leaves the weights as they are, in the step of a worker alone whose gradients overflowed."""
    announces: bool = True
    """Whether `forward_backward` calls the `on_grad_ready` functions: not if its gradients are only part of a sum."""

    @abstractmethod
    def forward_backward(self, batch: Batch, weight: float) -> Tensor:
        """Put `weight` times the gradient of the batch's mean loss into `grads`; return `weight` times the loss."""

    def apply(self) -> None:
        """Make one step of the optimiser, from `grads`."""
        if not self.skips:
            self.update.apply()

    @abstractmethod
    def on_grad_ready(self, fn: Callable[[int, int], None]) -> None:
        """Call `fn(start, stop)` during `forward_backward`, as soon as that span of `grads` is final.

        Spans that were not announced, such as all of them for an empty batch, are final when it returns.
        """

    def accepts(self) -> bool:
        """Tell whether the gradients can be used; if a worker's overflowed, all workers leave the step out."""
        return True

    def extras(self) -> dict[str, Tensor]:
        """Return further tensors that a checkpoint holds and restores in place, such as the scale of the loss."""
        return {}

    def refresh(self) -> None:  # noqa: B027
        """Update the network's buffers that are not views of `params`, after `params` were overwritten."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the trainable weights, in their order in `params`."""
        named = dict(self.module.named_parameters())
        return [tuple(named[name].shape) for name in self.spans if name in named]


Piece = tuple[Batch, float]
"""Some rows, and their weight in the mean over the global batch."""


def sum_of_lanes(replica: Replica, lanes: Sequence[Iterable[Piece]], *, alone: bool = True) -> Tensor:
    """Leave in `grads` the sum over all pieces of all lanes; return the sum of their losses.

    A lane's pieces are added in order, the lanes in a balanced binary tree. The tree makes the sum independent of
    which rank computes which lanes, as long as each rank owns a whole subtree (see `comm.exact`).
    """
    if len(lanes) == 1:
        return _sum_of_pieces(replica, lanes[0], alone=alone)
    middle = len(lanes) // 2
    left_loss = sum_of_lanes(replica, lanes[:middle], alone=False)
    left = replica.grads.clone()
    right_loss = sum_of_lanes(replica, lanes[middle:], alone=False)
    replica.grads.copy_(left.add_(replica.grads))
    return left_loss + right_loss


def _sum_of_pieces(replica: Replica, pieces: Iterable[Piece], *, alone: bool) -> Tensor:
    remaining = iter(pieces)
    first = next(remaining)  # a lane has at least one piece, which may be empty
    piece = next(remaining, None)
    replica.announces = alone and piece is None
    loss, total = replica.forward_backward(*first), None
    while piece is not None:
        total = replica.grads.clone() if total is None else total.add_(replica.grads)
        loss = loss + replica.forward_backward(*piece)
        piece = next(remaining, None)
    if total is not None:
        replica.grads.add_(total)
    return loss
