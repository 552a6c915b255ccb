"""Replicas of a Linear stack under plain SGD, whose weights are touched once in a block of steps.

A step of 8 rows changes a matrix by a product of rank 8, and yet goes through the whole matrix, twice. So the steps of
a block leave the weights alone. Where W is the matrix before the block, and the steps so far had the inputs Xs and the
slopes Ds (learning rate included), the product of an input x with the matrix as it is now is

    x (W - Σ Ds' Xs)' = x W' - Σ (x Xs') Ds,

and the first layer's x W' and x Xs', for whose inputs nobody has to wait, are one large product each for all steps. At
the end of the block W changes by one product. Right after an averaging W is the same for all replicas: then their rows
go through it as one matrix, and if the block ends in an averaging again, no replica's own weights are ever made.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from manyhands.replica.fused import CROSS_ENTROPY, FusedReplica, activate_, stack_of_layers, through_
from manyhands.replica.stacked import row_losses
from manyhands.virtual.groups import ReplicaGroup
from manyhands.virtual.rows import Feed

BLOCK_ROWS = 128
"""Rows of a replica in a block: fewer go through the weights more often, more have more to do with each other."""


class ReplicaLayer(NamedTuple):
    """A Linear layer of some replicas: one for all, or one for each."""

    weight: Tensor
    """(1 or replicas, outputs, inputs)."""
    bias: Tensor
    """(1 or replicas, 1, outputs)."""
    activation: type[nn.Module] | None

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for (replicas, rows, inputs), before the activation."""
        if len(self.weight) > 1:
            return torch.baddbmm(self.bias, x, self.weight.transpose(1, 2))
        out = torch.addmm(self.bias[0, 0], x.flatten(0, 1), self.weight[0].t())
        return out.view(*x.shape[:2], -1)

    def backward(self, delta: Tensor) -> Tensor:
        """Return the slopes of the inputs, given those of the outputs."""
        if len(self.weight) > 1:
            return torch.bmm(delta, self.weight)
        return torch.mm(delta.flatten(0, 1), self.weight[0]).view(*delta.shape[:2], -1)


@final
class Block:
    """Some steps of some replicas, of which the weights see nothing yet."""

    def __init__(
        self, layers: Sequence[ReplicaLayer], batch: tuple[Tensor, Tensor], share: Tensor, *, softmax: bool
    ) -> None:
        """Make ready for the rows of as many steps as the (replicas, steps, width) share has."""
        x, self._y = batch[0].flatten(2), batch[1]
        self._layers, self._share, self._softmax = layers, share.flatten(1), softmax
        self._width, self.left, self.done = share.shape[2], share.shape[1], 0
        self._first = layers[0].forward(x)
        outputs = [self._first, *(x.new_empty(*x.shape[:2], layer.bias.shape[2]) for layer in layers[1:])]
        self._inputs, self._moves = [x, *outputs[:-1]], [torch.empty_like(out) for out in outputs]
        """Of each layer the (replicas, rows, inputs), and the (replicas, rows, outputs) slopes times learning rate."""
        self._products = torch.bmm(x, x.transpose(1, 2)).add_(1) if self.left > 1 else x  # a bias has the input 1
        self._minus_ones = -x.new_ones(len(x), self._width, 1)

    def step(self, rate: float) -> Tensor:
        """Make the next step; return its loss, summed over the replicas."""
        past, now = slice(0, self.done * self._width), slice(self.done * self._width, (self.done + 1) * self._width)
        losses, slopes = row_losses(self._forward(past, now), self._y[:, now], self._minus_ones, softmax=self._softmax)
        share = self._share[:, now]
        self._backward(slopes.mul_((share * rate).unsqueeze(2)), past, now)
        self.done, self.left = self.done + 1, self.left - 1
        return losses.mul_(share).sum()

    def changes(self) -> list[tuple[Tensor, Tensor]]:
        """Return inputs and slopes of each layer, whose products are what the steps so far take off the weights."""
        past = slice(0, self.done * self._width)
        return [(x[:, past], moves[:, past]) for x, moves in zip(self._inputs, self._moves, strict=True)]

    def _forward(self, past: slice, now: slice) -> Tensor:
        for i, layer in enumerate(self._layers):
            x = self._inputs[i][:, now]
            out = layer.forward(x) if i else self._first[:, now]
            if past.stop:
                earlier = self._products[:, now, past] if i == 0 else _products(x, self._inputs[i][:, past])
                out = torch.baddbmm(out, earlier, self._moves[i][:, past], alpha=-1)
            activate_(out, layer.activation)
            if i + 1 < len(self._layers):
                self._inputs[i + 1][:, now] = out
        return out

    def _backward(self, delta: Tensor, past: slice, now: slice) -> None:
        for i in range(len(self._layers) - 1, -1, -1):
            self._moves[i][:, now] = delta
            if i == 0:
                return
            down = self._layers[i].backward(delta)
            if past.stop:
                earlier = torch.bmm(delta, self._moves[i][:, past].transpose(1, 2))
                down.baddbmm_(earlier, self._inputs[i][:, past], alpha=-1)
            delta = through_(down, self._inputs[i][:, now], self._layers[i - 1].activation)


def _products(x: Tensor, earlier: Tensor) -> Tensor:
    return torch.bmm(x, earlier.transpose(1, 2)).add_(1)


@final
class DelayedGroup(ReplicaGroup):
    """Some replicas, as weights that all of them have and a block of steps since, or as weights of their own."""

    def __init__(self, workers: slice, replica: FusedReplica, loss: str, every: int, feed: Feed) -> None:
        """Begin with the weights of this replica; after `every` steps, all will be given the same weights again."""
        found = stack_of_layers(replica.module)
        assert found is not None
        self.workers, self._parsed, self._every, self._feed = workers, found, every, feed
        self._softmax, self._lr = loss == CROSS_ENTROPY, float(replica.update.optimizer.param_groups[0]["lr"])
        self._shared = replica.params.clone()
        self._own: Tensor | None = None
        self._block: Block | None = None

    @torch.no_grad()
    def run(self, steps: range) -> Tensor:
        """Go on with the block, or with the next."""
        plan, losses = self._feed.plan, []
        for step in steps:
            if self._block is None or not self._block.left:
                self._block = self._begin(step)
            # A worker's gradient counts n times, so that the mean of such steps over the workers is the whole's.
            losses.append(self._block.step(self._lr * plan.schedule.scale(step) * plan.size))
        return torch.stack(losses)

    @torch.no_grad()
    def total(self) -> Tensor:
        """Add up the rows, or what the block does to the shared weights: one product of all its rows."""
        if self._own is not None:
            return self.rows().sum(0)
        total = self._shared * self._size
        for layer, (x, moves) in zip(self._views(total.unsqueeze(0)), self._changes(), strict=False):
            layer.weight[0].addmm_(moves.flatten(0, 1).t(), x.flatten(0, 1), alpha=-1)
            layer.bias[0, 0].sub_(moves.sum((0, 1)))
        return total

    @torch.no_grad()
    def rows(self) -> Tensor:
        """Work the block, which ends here, into weights of the replicas' own."""
        if self._own is None:
            self._own = self._shared.repeat(self._size, 1)
        for layer, (x, moves) in zip(self._views(self._own), self._changes(), strict=False):
            layer.weight.baddbmm_(moves.transpose(1, 2), x, alpha=-1)
            layer.bias.sub_(moves.sum(1, keepdim=True))
        self._block = None
        return self._own

    def set_(self, weights: Tensor) -> None:
        """Share them, and forget what was before."""
        self._shared, self._own, self._block = weights, None, None

    def exchange(self, rows: Tensor) -> Tensor:
        """Take the rows for the old ones."""
        before, self._own = self.rows(), rows
        return before

    def _begin(self, step: int) -> Block:
        """Begin a block: of so many rows, or of the steps up to the next exchange."""
        if self._block is not None:
            self.rows()
        num = max(1, BLOCK_ROWS // self._feed.width)
        stop = min(step + num, step // self._every * self._every + self._every, self._feed.plan.steps)
        share = self._feed.share(self.workers, range(step, stop))
        layers = self._views(self._shared.unsqueeze(0) if self._own is None else self._own)
        return Block(layers, self._feed.batch(share.rows), share.weights, softmax=self._softmax)

    def _changes(self) -> list[tuple[Tensor, Tensor]]:
        return self._block.changes() if self._block is not None else []

    @property
    def _size(self) -> int:
        return int(self.workers.stop - self.workers.start)

    def _views(self, rows: Tensor) -> list[ReplicaLayer]:
        """Cut flat rows into layers."""
        layers, start = [], 0
        for linear, activation in self._parsed:
            middle = start + linear.weight.numel()
            stop = middle + linear.bias.numel()
            weight = rows[:, start:middle].view(-1, *linear.weight.shape)
            layers.append(ReplicaLayer(weight, rows[:, middle:stop].unsqueeze(1), activation))
            start = stop
        return layers
