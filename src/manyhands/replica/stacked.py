"""Train several models of one architecture as one: every operation has a leading dimension for the models.

Ten folds of a cross-validation are ten small networks; one batched product keeps the cores busier than ten products
in turn. The models never mix: each has its own weights, its own rows and its own loss.

The rounding of a matrix product depends on where in memory the matrix begins. So each model's part of a tensor begins
at a multiple of 64 bytes: with one thread, the fused stack gives a model the same bits at every place in the stack and
for every number of models.
"""

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from manyhands.replica.base import Replica
from manyhands.replica.criterion import CROSS_ENTROPY, SIGMOID_ENTROPY, Criterion, Loss, as_criterion
from manyhands.replica.fused import (
    Buffers,
    FusedLayer,
    FusedReplica,
    activate_,
    can_fuse,
    stack_of_layers,
    through_,
)
from manyhands.replica.layout import lay_out
from manyhands.replica.nested import set_training
from manyhands.replica.optimizer.groups import OptimizerFactory
from manyhands.replica.random import Draws, key_random_layers
from manyhands.replica.traits import traits_of
from manyhands.replica.update import Update

CACHE_BYTES = 4 << 20
"""Largest size of a stack's weights and gradients on a CPU: more would not stay in the cache between steps."""


class Stack(ABC):
    """Some models of one architecture; row i of `params` and `grads` belongs to model i.

    The weights of `modules[i]` are views of `params[i]`. Every model steps in every `apply`, even if it had no rows: a
    gradient of zeros does nothing in plain SGD, but momentum and Adam still change the weights.
    """

    params: Tensor
    grads: Tensor
    modules: list[nn.Module]
    update: Update
    """The optimiser of `params` as one flat parameter; its `scale` may be set before each `apply`."""

    @abstractmethod
    def forward_backward(self, x: Tensor, y: Tensor, weights: Tensor, key: int = 0) -> Tensor:
        """Fill `grads` and return the loss of each model: the sum over its rows of weight times the row's loss.

        x is (models, rows, ...), y and weights are (models, rows). A row of weight 0 is padding, whatever it holds.
        Random layers draw from `key` and the row, as a replica does with a batch of this key and first row 0.
        """

    def apply(self) -> None:
        """Make one step of the optimiser over the weights of all models, from `grads`."""
        self.update.apply()

    @abstractmethod
    def outputs(self, x: Tensor) -> Tensor:
        """Return (models, rows, ...) outputs in evaluation mode; x is (models, rows, ...), or (rows, ...) for all."""


def stack(
    modules: Sequence[nn.Module],
    sample: Tensor,
    loss: str | Loss | Criterion,
    optimizer: OptimizerFactory,
    *,
    device: torch.device,
    dtype: torch.dtype,
    fuse: bool = True,
) -> Stack | None:
    """Return a stack that takes over the weights of `modules`, or None if the models must be trained one by one.

    That is so for networks whose forward pass changes statistics, mixes the rows of a batch or draws random numbers
    other than in dropout layers, for operations that `torch.func.vmap` refuses, and for losses that are no mean over
    the rows. Convolutions could be stacked, but would be slower. `sample` is a small batch for trial passes.
    """
    criterion = as_criterion(loss)
    modules = [set_training(module.to(device=device, dtype=dtype)) for module in modules]
    if fuse and can_fuse(modules[0], criterion.name):
        return FusedStack(modules, sample.dim(), criterion.name, optimizer)
    sample = sample.to(device=device, dtype=dtype)
    # The trial is made with copies, since a network that is refused must stay as it was.
    trial = FuncStack(copy.deepcopy(modules[:2]), sample.dim(), criterion, optimizer)
    if not _fits(trial, sample):
        return None
    fitting = FuncStack(modules, sample.dim(), criterion, optimizer)
    fitting.draws.learn(trial.draws.places)
    return fitting


def _fits(trial: "FuncStack", sample: Tensor) -> bool:
    first = trial.modules[0]
    # vmap makes grouped convolutions of them, which take 1.6 times as long as the models in turn (`cnn`, one core).
    if any(isinstance(layer, nn.modules.conv._ConvNd) for layer in first.modules()):
        return False
    traits = traits_of(first, sample)
    trial.draws.learn(traits.places)
    # A function that draws by position cannot tell the models of a stack from the rows.
    drawn = traits.global_random or trial.draws.intercepts
    apart = not (traits.moving or traits.batch_statistics or drawn or traits.remembers)
    return apart and trial.is_faithful(sample)


@final
class FusedStack(Stack):
    """Stacks of Linear layers with softmax or sigmoid cross-entropy on top, forward and backward written out."""

    def __init__(self, modules: list[nn.Module], sample_dims: int, loss_name: str, optimizer: OptimizerFactory) -> None:
        self.modules, self._sample_dims = modules, sample_dims
        self._softmax = loss_name == CROSS_ENTROPY
        self.params, self.grads, self.update = _lay_out_rows(modules, optimizer)
        linears = stack_of_layers(modules[0])
        assert linears is not None
        weights, grads = _cut(self.params, modules[0]), _cut(self.grads, modules[0])
        parts = zip(weights[::2], weights[1::2], grads[::2], grads[1::2], linears, strict=True)
        self._layers = [
            FusedLayer(weight, weight.transpose(1, 2), bias.unsqueeze(1), weight_grad, bias_grad, activation)
            for weight, bias, weight_grad, bias_grad, (_, activation) in parts
        ]
        self._buffers: dict[int, Buffers] = {}

    @torch.no_grad()
    def forward_backward(self, x: Tensor, y: Tensor, weights: Tensor, key: int = 0) -> Tensor:
        x, y = _without_padding(x, y, weights)
        rows = x.shape[1]
        if rows == 0:
            self.grads.zero_()
            return self.grads.new_zeros(len(self.modules))
        x, buffers = _aligned(x.flatten(2)), self._buffers_for(rows)
        out = self._forward(x, buffers.outputs)
        losses, slopes = row_losses(out, y, buffers.minus_ones, softmax=self._softmax)
        self._backward(x, torch.mul(slopes, weights.unsqueeze(2), out=buffers.deltas[-1]), buffers)
        return losses.mul_(weights).sum(1)

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(0).expand(len(self.modules), *x.shape) if x.dim() == self._sample_dims else x
        return self._forward(x.flatten(2), self._new_outputs(x.shape[1]))

    def _new_outputs(self, rows: int) -> list[Tensor]:
        return [_new_aligned(self.params, rows, layer.bias.shape[2]) for layer in self._layers]

    def _buffers_for(self, rows: int) -> Buffers:
        if rows not in self._buffers:
            minus_ones = -self.params.new_ones(len(self.modules), rows, 1)
            self._buffers[rows] = Buffers(self._new_outputs(rows), self._new_outputs(rows), minus_ones)
        return self._buffers[rows]

    def _forward(self, x: Tensor, outputs: list[Tensor]) -> Tensor:
        for layer, out in zip(self._layers, outputs, strict=True):
            torch.baddbmm(layer.bias, x, layer.transposed, out=out)
            x = activate_(out, layer.activation)
        return x

    def _backward(self, x: Tensor, delta: Tensor, buffers: Buffers) -> None:
        for i in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[i]
            below = buffers.outputs[i - 1] if i else x
            torch.bmm(delta.transpose(1, 2), below, out=layer.weight_grad)
            torch.sum(delta, 1, out=layer.bias_grad)
            if i:
                down = torch.bmm(delta, layer.weight, out=buffers.deltas[i - 1])
                delta = through_(down, below, self._layers[i - 1].activation)


@final
class FuncStack(Stack):
    """Any network that `torch.func.vmap` can run for all models at once, by autograd into the rows."""

    def __init__(
        self, modules: list[nn.Module], sample_dims: int, criterion: Criterion, optimizer: OptimizerFactory
    ) -> None:
        self.modules, self._sample_dims, self.draws = modules, sample_dims, Draws()
        for module in modules:
            key_random_layers(module, self.draws)
        self._loss = criterion.loss
        self._row_losses = _ROW_LOSSES.get(criterion.name) or _by_row(criterion.loss)
        self.params, self.grads, self.update = _lay_out_rows(modules, optimizer)
        self._leaves = [part.requires_grad_() for part in _cut(self.params, modules[0])]
        self._leaf_grads = _cut(self.grads, modules[0])
        trained = [id(p) for p in modules[0].parameters() if p.requires_grad]
        leaf_of = dict(zip(trained, self._leaves, strict=True))
        self._weights = {name: leaf_of[id(p)] for name, p in _named_tensors(modules[0]) if id(p) in leaf_of}
        fixed = [{name: t.detach() for name, t in _named_tensors(m) if not t.requires_grad} for m in modules]
        self._constants = {name: torch.stack([tensors[name] for tensors in fixed]) for name in fixed[0]}

    def forward_backward(self, x: Tensor, y: Tensor, weights: Tensor, key: int = 0) -> Tensor:
        x, y = _without_padding(x, y, weights)
        if x.shape[1] == 0:
            self.grads.zero_()
            return self.grads.new_zeros(len(self.modules))
        self.draws.at(key, 0, x.shape[1])
        losses = (self._row_losses(self._run(x, 0), y) * weights).sum(1)
        gradients = torch.autograd.grad(losses.sum(), self._leaves, allow_unused=True)
        for row, gradient in zip(self._leaf_grads, gradients, strict=True):
            row.zero_() if gradient is None else row.copy_(gradient)
        return losses.detach()

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        first = self.modules[0]
        modes = [(layer, layer.training) for layer in first.modules()]
        first.eval()
        out = self._run(x, None if x.dim() == self._sample_dims else 0)
        for layer, training in modes:
            layer.training = training
        return out

    def is_faithful(self, sample: Tensor) -> bool:
        """Return whether the stack gives the losses that the models give one by one."""
        k, rows = len(self.modules), 4
        x = sample[torch.arange(rows) % len(sample)]
        try:
            outputs = self.outputs(x)
            # Labels that differ tell a mean over the rows from one that weighs them by their class.
            y = torch.arange(rows, device=x.device) % max(1, outputs[0, 0].numel())
            share = x.new_full((k, rows), 1 / rows)
            losses = self.forward_backward(x.expand(k, *x.shape), y.expand(k, rows), share)
            expected = torch.stack([self._alone(module, x, y) for module in self.modules])
        except RuntimeError:  # raised by vmap; an error in the user's code comes back when the models train in turn
            return False
        return losses.shape == expected.shape and torch.allclose(losses, expected, rtol=1e-3, equal_nan=True)

    @torch.no_grad()
    def _alone(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        self.draws.at(0, 0, x.shape[0])
        return self._loss(module(x), y)

    def _run(self, x: Tensor, x_dim: int | None) -> Tensor:
        return vmap(self._call_first, (0, 0, x_dim))(self._weights, self._constants, x)

    def _call_first(self, weights: dict[str, Tensor], constants: dict[str, Tensor], x: Tensor) -> Tensor:
        # With tie_weights=True it would not restore the weights of a layer that occurs twice.
        return functional_call(self.modules[0], (weights, constants), (x,), tie_weights=False)  # type: ignore[no-any-return]


def _lay_out_rows(modules: list[nn.Module], optimizer: OptimizerFactory) -> tuple[Tensor, Tensor, Update]:
    """Move each module's weights and gradients into its row of one tensor each; return these and their optimiser."""
    layouts = [lay_out(module, ()) for module in modules]
    assert all(layout.spans == layouts[0].spans for layout in layouts), "the models have one architecture"
    first = layouts[0].params
    num_weights = first.numel()
    all_params, all_grads = (first.new_zeros(len(modules), _rounded_up(num_weights, first)) for _ in range(2))
    params, grads = all_params[:, :num_weights], all_grads[:, :num_weights]
    torch.stack([layout.params for layout in layouts], out=params)
    for module, row, row_grads in zip(modules, params, grads, strict=True):
        for name, p in module.named_parameters():
            if name in layouts[0].spans:
                start, stop = layouts[0].spans[name]
                p.data = row[start:stop].as_strided(p.shape, p.stride())
                p.grad = row_grads[start:stop].as_strided(p.shape, p.stride())
    # The optimiser also updates the gaps between the rows, where weight and gradient stay 0.
    return params, grads, Update(all_params.view(-1), all_grads.view(-1), all_params.numel(), optimizer)


def _cut(rows: Tensor, module: nn.Module) -> list[Tensor]:
    """Return the view of the models' `params` or `grads` that belongs to each trained weight of `module`."""
    parts, start = [], 0
    for p in module.parameters():
        if p.requires_grad:
            shape, stride = (len(rows), *p.shape), (rows.stride(0), *p.stride())
            parts.append(rows[:, start : start + p.numel()].as_strided(shape, stride))
            start += p.numel()
    return parts


def _rounded_up(elements: int, like: Tensor) -> int:
    """Round a number of elements up to whole units of 64 bytes."""
    unit = 64 // like.element_size()
    return -(-elements // unit) * unit


def _new_aligned(like: Tensor, rows: int, width: int) -> Tensor:
    """Return an uninitialised (models, rows, width) tensor in which each model's part is aligned."""
    flat = like.new_empty(len(like), _rounded_up(rows * width, like))
    return flat[:, : rows * width].view(len(like), rows, width)


def _aligned(x: Tensor) -> Tensor:
    """Return `x`, or a copy in which each model's part is aligned."""
    begins = (x.data_ptr(), x.stride(0) * x.element_size())
    return x if all(begin % 64 == 0 for begin in begins) else _new_aligned(x, *x.shape[1:]).copy_(x)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights and buffers of all layers with their names; a shared one comes once for each name."""
    for prefix, layer in module.named_modules():
        yield from layer.named_parameters(prefix, recurse=False, remove_duplicate=False)
        yield from layer.named_buffers(prefix, recurse=False, remove_duplicate=False)


def _without_padding(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the rows of weight 0 by the first real row: a NaN in them times 0 would be a NaN."""
    if weights.all():
        return x, y
    real = weights != 0
    if not real.any():
        return x[:, :0], y[:, :0]
    model, row = real.nonzero()[0]

    def filled(t: Tensor) -> Tensor:
        return torch.where(real.view(real.shape + (1,) * (t.dim() - 2)), t, t[model, row])

    return filled(x), filled(y)


def row_losses(out: Tensor, y: Tensor, minus_ones: Tensor, *, softmax: bool) -> tuple[Tensor, Tensor]:
    """Return the (models, rows) losses, and the gradient of each by its row of `out`, which may be overwritten."""
    column = y.unsqueeze(2)
    if softmax:
        log_p = torch.log_softmax(out, 2)
        losses = log_p.gather(2, column).squeeze(2).neg_()
        p = log_p.exp_()
    else:
        losses = nn.functional.softplus(out).sum(2) - out.gather(2, column).squeeze(2)
        p = out.sigmoid_()
    return losses, p.scatter_add_(2, column, minus_ones)


def _cross_entropies(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def _sigmoid_cross_entropies(out: Tensor, y: Tensor) -> Tensor:
    target = torch.zeros_like(out).scatter_(2, y.unsqueeze(2), 1.0)
    return nn.functional.binary_cross_entropy_with_logits(out, target, reduction="none").sum(2)


_ROW_LOSSES: dict[str, Loss] = {CROSS_ENTROPY: _cross_entropies, SIGMOID_ENTROPY: _sigmoid_cross_entropies}


def _by_row(loss: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the losses of single rows, from a loss that is their mean."""
    return vmap(vmap(lambda out, y: loss(out.unsqueeze(0), y.unsqueeze(0))))


def most_in_a_stack(replica: Replica) -> int:
    """Return how many models like `replica` may be stacked: on a CPU, as many as stay in a core's cache.

    That holds for stacks of Linear layers only: the bits of other networks depend on the models stacked with them.
    """
    cut_by_cache = isinstance(replica, FusedReplica) and not replica.params.is_cuda
    return max(1, CACHE_BYTES // (replica.params.nbytes + replica.grads.nbytes)) if cut_by_cache else sys.maxsize
