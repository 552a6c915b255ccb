"""Replicas of a stack of Linear layers under plain SGD, whose weights are updated once per block of steps.

A step of 8 rows changes a weight matrix by a product of rank 8, but reads and writes the whole matrix. The steps of a
block therefore leave the weights as they are. With W the matrix before the block, and Xs and Ds the inputs and the
output gradients (times the learning rate) of the steps so far, the product of an input x with the current matrix is

    x (W - Σ Ds' Xs)' = x W' - Σ (x Xs') Ds,

where the first layer's x W' and x Xs', whose inputs are known in advance, are one large product each for all steps.
The block ends with one product that updates W. After an averaging W is the same for all replicas: their rows go through
it as one matrix, and if the block ends in another averaging, the replicas' own weights are never computed.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from manyhands.replica.criterion import CROSS_ENTROPY
from manyhands.replica.fused import FusedReplica, activate_, stack_of_layers, through_
from manyhands.replica.stacked import row_losses
from manyhands.virtual.groups import ReplicaGroup
from manyhands.virtual.rows import Feed

BLOCK_ROWS = 128
"""Rows of a replica in a block: fewer read the weights more often, more cost longer products with earlier rows."""


class ReplicaLayer(NamedTuple):
    """A Linear layer of several replicas, with weights that they share or that each has."""

    weight: Tensor
    """(1 or replicas, outputs, inputs)."""
    bias: Tensor
    """(1 or replicas, 1, outputs)."""
    activation: type[nn.Module] | None

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs before the activation, given (replicas, rows, inputs)."""
        if len(self.weight) > 1:
            return torch.baddbmm(self.bias, x, self.weight.transpose(1, 2))
        out = torch.addmm(self.bias[0, 0], x.flatten(0, 1), self.weight[0].t())
        return out.view(*x.shape[:2], -1)

    def backward(self, delta: Tensor) -> Tensor:
        """Return the gradients of the inputs, given those of the outputs."""
        if len(self.weight) > 1:
            return torch.bmm(delta, self.weight)
        return torch.mm(delta.flatten(0, 1), self.weight[0]).view(*delta.shape[:2], -1)


@final
class Block:
    """Steps of a group of replicas that are not yet applied to the weights."""

    def __init__(
        self, layers: Sequence[ReplicaLayer], batch: tuple[Tensor, Tensor], share: Tensor, *, softmax: bool
    ) -> None:
        """Prepare the steps whose rows and weights in the mean are `batch` and the (replicas, steps, width) `share`."""
        x, self._y = batch[0].flatten(2), batch[1]
        self._layers, self._share, self._softmax = layers, share.flatten(1), softmax
        self._width, self.left, self.done = share.shape[2], share.shape[1], 0
        self._first = layers[0].forward(x)
        outputs = [self._first, *(x.new_empty(*x.shape[:2], layer.bias.shape[2]) for layer in layers[1:])]
        self._inputs, self._moves = [x, *outputs[:-1]], [torch.empty_like(out) for out in outputs]
        """For each layer (replicas, rows, inputs), and (replicas, rows, outputs) gradients times the learning rate."""
        self._products = torch.bmm(x, x.transpose(1, 2)).add_(1) if self.left > 1 else x  # 1 is the input of the bias
        self._minus_ones = -x.new_ones(len(x), self._width, 1)

    def step(self, rate: float) -> Tensor:
        """Take the next step; return its loss, summed over the replicas."""
        past, now = slice(0, self.done * self._width), slice(self.done * self._width, (self.done + 1) * self._width)
        losses, grads = row_losses(self._forward(past, now), self._y[:, now], self._minus_ones, softmax=self._softmax)
        share = self._share[:, now]
        self._backward(grads.mul_((share * rate).unsqueeze(2)), past, now)
        self.done, self.left = self.done + 1, self.left - 1
        return losses.mul_(share).sum()

    def changes(self) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's inputs and scaled gradients, whose products are to be subtracted from the weights."""
        past = slice(0, self.done * self._width)
        return [(x[:, past], moves[:, past]) for x, moves in zip(self._inputs, self._moves, strict=True)]

    def _forward(self, past: slice, now: slice) -> Tensor:
        for i, layer in enumerate(self._layers):
            x = self._inputs[i][:, now]
            out = layer.forward(x) if i else self._first[:, now]
            if past.stop:
                if i == 0:
                    earlier = self._products[:, now, past]
                else:
                    earlier = torch.bmm(x, self._inputs[i][:, past].transpose(1, 2)).add_(1)
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


@final
class DelayedGroup(ReplicaGroup):
    """Replicas with common weights and a block of steps since the last averaging, or with individual weights."""

    def __init__(self, workers: slice, replica: FusedReplica, loss: str, every: int, feed: Feed) -> None:
        """Start from the weights of `replica`; all replicas get equal weights again every `every` steps."""
        layers = stack_of_layers(replica.module)
        assert layers is not None
        self.workers, self._layers, self._every, self._feed = workers, layers, every, feed
        self._softmax, self._lr = loss == CROSS_ENTROPY, float(replica.update.optimizer.param_groups[0]["lr"])
        self._size = int(workers.stop - workers.start)
        self._shared = replica.params.clone()
        """The flat weights that all replicas had before the block, unless `_individual` has a row for each."""
        self._individual: Tensor | None = None
        self._block: Block | None = None

    @torch.no_grad()
    def run(self, steps: range) -> Tensor:
        plan, losses = self._feed.plan, []
        for step in steps:
            if self._block is None or not self._block.left:
                self._block = self._begin(step)
            # Gradients are shares of the global mean; n times a share makes the mean of the steps the global step.
            losses.append(self._block.step(self._lr * plan.schedule.scale(step) * plan.size))
        return torch.stack(losses)

    @torch.no_grad()
    def total(self) -> Tensor:
        if self._individual is not None:
            return self.rows().sum(0)
        total = self._shared * self._size
        for layer, (x, moves) in zip(self._views(total.unsqueeze(0)), self._changes(), strict=False):
            layer.weight[0].addmm_(moves.flatten(0, 1).t(), x.flatten(0, 1), alpha=-1)
            layer.bias[0, 0].sub_(moves.sum((0, 1)))
        return total

    @torch.no_grad()
    def rows(self) -> Tensor:
        if self._individual is None:
            self._individual = self._shared.repeat(self._size, 1)
        for layer, (x, moves) in zip(self._views(self._individual), self._changes(), strict=False):
            layer.weight.baddbmm_(moves.transpose(1, 2), x, alpha=-1)
            layer.bias.sub_(moves.sum(1, keepdim=True))
        self._block = None
        return self._individual

    def set_(self, weights: Tensor) -> None:
        self._shared, self._individual, self._block = weights, None, None

    def exchange(self, rows: Tensor) -> Tensor:
        before, self._individual = self.rows(), rows
        return before

    def _begin(self, step: int) -> Block:
        """Start a block of `BLOCK_ROWS` rows per replica, or of the steps up to the next exchange."""
        if self._block is not None:
            self.rows()
        num = max(1, BLOCK_ROWS // self._feed.width)
        stop = min(step + num, step // self._every * self._every + self._every, self._feed.plan.steps)
        share = self._feed.share(self.workers, range(step, stop))
        layers = self._views(self._shared.unsqueeze(0) if self._individual is None else self._individual)
        return Block(layers, self._feed.batch(share.rows), share.weights, softmax=self._softmax)

    def _changes(self) -> list[tuple[Tensor, Tensor]]:
        return self._block.changes() if self._block is not None else []

    def _views(self, rows: Tensor) -> list[ReplicaLayer]:
        """View flat rows of weights as layers."""
        layers, start = [], 0
        for linear, activation in self._layers:
            middle = start + linear.weight.numel()
            stop = middle + linear.bias.numel()
            weight = rows[:, start:middle].view(-1, *linear.weight.shape)
            layers.append(ReplicaLayer(weight, rows[:, middle:stop].unsqueeze(1), activation))
            start = stop
        return layers
