"""The fast replica for stacks of Linear, ReLU and Sigmoid: forward and backward written out by hand.

Every product goes into a preallocated buffer and every weight gradient straight into the flat gradients; for
batches of 32 to 64 rows autograd's bookkeeping would cost a fifth to a half of the step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from manyhands.replica.base import Batch, Replica
from manyhands.replica.criterion import CROSS_ENTROPY, OF_CLASSES, Criterion
from manyhands.replica.layout import Layout
from manyhands.replica.optimizer.groups import OptimizerRecipe
from manyhands.replica.peers import Peers
from manyhands.replica.update import Update

# Looked up once: the look-up takes as long as the operation.
_relu_backward = torch.ops.aten.threshold_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


@dataclass
class FusedLayer:
    """A Linear layer's views of the flat tensors, and the activation that follows it."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor
    weight_grad: Tensor
    bias_grad: Tensor
    activation: type[nn.Module] | None


@dataclass
class Buffers:
    """Tensors for batches of one size: the output of each layer, and the gradient with respect to it."""

    outputs: list[Tensor]
    deltas: list[Tensor]
    minus_ones: Tensor


def stack_of_layers(module: nn.Module) -> list[tuple[nn.Linear, type[nn.Module] | None]] | None:
    """Return the Linear layers with their activations, or None if the network has anything else."""
    if type(module) is not nn.Sequential or any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        return None
    layers = list(module)
    if layers and type(layers[0]) is nn.Flatten and layers[0].start_dim == 1 and layers[0].end_dim == -1:
        layers = layers[1:]
    stack: list[tuple[nn.Linear, type[nn.Module] | None]] = []
    for layer in layers:
        if type(layer) is nn.Linear and layer.bias is not None:
            stack.append((layer, None))
        elif type(layer) in (nn.ReLU, nn.Sigmoid) and stack and stack[-1][1] is None:
            stack[-1] = (stack[-1][0], type(layer))
        else:
            return None
    ends_plain = bool(stack) and stack[-1][1] is None
    num_trained = sum(p.requires_grad for p in module.parameters())  # a tied or frozen weight is missing here
    return stack if ends_plain and num_trained == 2 * len(stack) else None


def can_fuse(module: nn.Module, loss_name: str) -> bool:
    """Tell whether network and loss are of the kind that is written out here."""
    return loss_name in OF_CLASSES and stack_of_layers(module) is not None


@final
class FusedReplica(Replica):
    """A stack of Linear layers with softmax or sigmoid cross-entropy on top."""

    def __init__(self, module: nn.Module, layout: Layout, criterion: Criterion, recipe: OptimizerRecipe) -> None:
        stack = stack_of_layers(module)
        assert stack is not None
        self.module, self.params, self.grads, self.spans = module, layout.params, layout.grads, layout.spans
        self.criterion, self.peers = criterion, Peers()
        self._softmax = criterion.name == CROSS_ENTROPY
        self._layers = []
        for linear, activation in stack:
            assert linear.weight.grad is not None
            assert linear.bias.grad is not None
            weight, bias = linear.weight.data, linear.bias.data
            self._layers.append(FusedLayer(weight, weight.t(), bias, linear.weight.grad, linear.bias.grad, activation))
        self._layer_spans = [_spans_of(layer) for layer in self._layers]
        self._buffers: dict[int, Buffers] = {}
        self._ready: list[Callable[[int, int], None]] = []
        self.update = Update(self.params, self.grads, self.params.numel(), recipe, layout.groups)

    @torch.no_grad()
    def forward_backward(self, batch: Batch, weight: float) -> Tensor:
        rows = batch.rows
        if rows == 0:
            self.grads.zero_()
            return self.grads.new_zeros(())
        x = batch.x.flatten(1)
        buffers = self._buffers_for(rows)
        out = self._forward(x, buffers)
        loss, delta = self._loss(out, batch.y, buffers, weight / rows)
        self._backward(x, delta, buffers)
        return loss

    def on_grad_ready(self, fn: Callable[[int, int], None]) -> None:
        self._ready.append(fn)

    def _buffers_for(self, rows: int) -> Buffers:
        if rows not in self._buffers:
            widths = [layer.bias.numel() for layer in self._layers]
            outputs = [self.params.new_empty(rows, w) for w in widths]
            deltas = [self.params.new_empty(rows, w) for w in widths[:-1]]
            self._buffers[rows] = Buffers(outputs, deltas, -self.params.new_ones(rows, 1))
        return self._buffers[rows]

    def _forward(self, x: Tensor, buffers: Buffers) -> Tensor:
        for layer, out in zip(self._layers, buffers.outputs, strict=True):
            torch.addmm(layer.bias, x, layer.transposed, out=out)
            x = activate_(out, layer.activation)
        return x

    def _loss(self, out: Tensor, y: Tensor, buffers: Buffers, scale: float) -> tuple[Tensor, Tensor]:
        """Return the scaled loss, and its gradient with respect to `out`."""
        column = y.unsqueeze(1)
        if self._softmax:
            log_p = torch.log_softmax(out, 1)
            loss = nn.functional.nll_loss(log_p, y, reduction="sum").mul_(scale)
            p = log_p.exp_()
        else:
            loss = (nn.functional.softplus(out).sum() - out.gather(1, column).sum()).mul_(scale)
            p = out.sigmoid_()
        return loss, p.scatter_add_(1, column, buffers.minus_ones).mul_(scale)

    def _backward(self, x: Tensor, delta: Tensor, buffers: Buffers) -> None:
        for i in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[i]
            below = buffers.outputs[i - 1] if i else x
            torch.mm(delta.t(), below, out=layer.weight_grad)
            torch.sum(delta, 0, out=layer.bias_grad)
            for fn in self._ready if self.announces else ():
                for span in self._layer_spans[i]:
                    fn(*span)
            if i:
                down = torch.mm(delta, layer.weight, out=buffers.deltas[i - 1])
                delta = through_(down, below, self._layers[i - 1].activation)


def _spans_of(layer: FusedLayer) -> list[tuple[int, int]]:
    """Return where a layer's gradients lie: one span, unless weight and bias are in different groups."""
    tensors = (layer.weight_grad, layer.bias_grad)
    (a, b), (c, d) = ((int(t.storage_offset()), int(t.storage_offset()) + t.numel()) for t in tensors)
    return [(a, d)] if b == c else [(a, b), (c, d)]


def activate_(out: Tensor, activation: type[nn.Module] | None) -> Tensor:
    """Apply an activation in place; None is the identity."""
    if activation is nn.ReLU:
        return out.relu_()
    return out.sigmoid_() if activation is nn.Sigmoid else out


def through_(delta: Tensor, out: Tensor, activation: type[nn.Module] | None) -> Tensor:
    """Multiply `delta` by the activation's slope, computed from its output `out`."""
    if activation is nn.ReLU:
        return _relu_backward(delta, out, 0, grad_input=delta)  # type: ignore[no-any-return]
    if activation is nn.Sigmoid:
        return _sigmoid_backward(delta, out, grad_input=delta)  # type: ignore[no-any-return]
    return delta
