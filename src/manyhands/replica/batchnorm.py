"""BatchNorm over the rows of all workers: the same layers, whose moments are gathered inside the pass.

Forward, the workers gather the count, mean and sum of squared deviations of each channel and combine them without
cancellation (Chan et al. 1979); backward, they sum the two sums that the gradient needs. A worker without rows counts
nothing, but makes the same calls. Gradients of weight and bias stay those of the worker's own rows, which the strategy
sums like all others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manyhands.replica.peers import Peers

_moments = torch.ops.aten.batch_norm_update_stats.default
_backward = torch.ops.aten.native_batch_norm_backward.default


@final
class GlobalBatchNorm1d(nn.BatchNorm1d):
    """`nn.BatchNorm1d` over the rows of all workers."""

    peers: Peers
    fixed: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return _normalise(self, x, super().forward)


@final
class GlobalBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` over the rows of all workers."""

    peers: Peers
    fixed: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return _normalise(self, x, super().forward)


@final
class GlobalBatchNorm3d(nn.BatchNorm3d):
    """`nn.BatchNorm3d` over the rows of all workers."""

    peers: Peers
    fixed: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return _normalise(self, x, super().forward)


@final
class GlobalSyncBatchNorm(nn.SyncBatchNorm):
    """`nn.SyncBatchNorm` over the rows of all workers, whatever joins them."""

    peers: Peers
    fixed: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return _normalise(self, x, super().forward)


GLOBAL: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: GlobalBatchNorm1d,
    nn.BatchNorm2d: GlobalBatchNorm2d,
    nn.BatchNorm3d: GlobalBatchNorm3d,
    nn.SyncBatchNorm: GlobalSyncBatchNorm,
}
"""The layers that can normalise over the global batch, and what they become; a user's subclasses stay as they are."""


def norms_of(module: nn.Module) -> list[Any]:
    """Return the layers of a network that normalise over the global batch."""
    kinds = tuple(GLOBAL.values())
    return [layer for layer in module.modules() if isinstance(layer, kinds)]


def first_norm(module: nn.Module) -> str:
    """Return the first of these layers in words, with the class that the user knows."""
    known = {made: kind.__name__ for kind, made in GLOBAL.items()}
    return next(
        (f"layer '{name}' ({known[type(layer)]})" for name, layer in module.named_modules() if type(layer) in known), ""
    )


def join_norms(module: nn.Module, peers: Peers) -> int:
    """Let every BatchNorm layer in training mode normalise over the rows of all `peers`; return the number of layers.

    A layer stays the same object of a class below its own, with its parameters, buffers and hooks: so what else refers
    to it, such as a `train()` that freezes every `nn.BatchNorm2d`, goes on to work.
    """
    for layer in module.modules():
        if type(layer) in GLOBAL and layer.training:
            layer.__class__ = GLOBAL[type(layer)]
    norms = norms_of(module)
    for layer in norms:
        layer.peers = peers
    return len(norms)


@contextmanager
def fixed_norms(module: nn.Module) -> Iterator[None]:
    """Let these layers compute each row by itself inside the block: trials look for what else mixes rows."""
    norms = norms_of(module)
    for layer in norms:
        layer.fixed = True
    try:
        yield
    finally:
        for layer in norms:
            layer.fixed = False


def _normalise(layer: Any, x: Tensor, alone: Any) -> Tensor:
    """Return the output of a layer; where no other worker is met, that of torch's own code (`alone`)."""
    if layer.fixed:
        zeros, ones = _per_channel(x, 0.0), _per_channel(x, 1.0)
        return torch.batch_norm(x, layer.weight, layer.bias, zeros, ones, False, 0.0, layer.eps, True)
    if not layer.training or layer.peers.size == 1:
        return alone(x)  # type: ignore[no-any-return]
    layer._check_input_dim(x)
    mean, var, count = _global_moments(x.detach(), layer.peers)
    if count <= 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, but the global batch has a single row, "
            f"got input size {tuple(x.shape)}"
        )
    if layer.track_running_stats:
        _track(layer, mean, var * (count / (count - 1)))
    parts = (x, layer.weight, layer.bias, mean, var, count, layer.eps, layer.peers)
    return _Normalised.apply(*parts)  # type: ignore[no-any-return, no-untyped-call]


def _per_channel(x: Tensor, value: float) -> Tensor:
    """Return a tensor with a value for each channel, in the type in which moments are computed."""
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.full((x.shape[1],), value, dtype=dtype, device=x.device)


def _global_moments(x: Tensor, peers: Peers) -> tuple[Tensor, Tensor, float]:
    """Return mean and variance of each channel over the rows of all workers, and the number of values in them."""
    mean, var = _moments(x, _per_channel(x, 0.0), _per_channel(x, 1.0), 0.0)  # the kernel of F.batch_norm itself
    count = x.numel() // x.shape[1] if peers.counts else 0
    mine = torch.cat([mean.new_full((1,), count, dtype=torch.float64), mean.double(), var.double()])
    if not count:
        mine.zero_()  # the row that only stands for the shape
    rows = peers.gather(mine)
    counts, (means, variances) = rows[:, :1], rows[:, 1:].chunk(2, dim=1)
    total = counts.sum()
    shares = counts / total
    whole = (shares * means).sum(0)
    spread = (shares * (variances + (means - whole).square())).sum(0)
    return whole.to(mean.dtype), spread.to(mean.dtype), float(total)


@torch.no_grad()
def _track(layer: _BatchNorm, mean: Tensor, unbiased: Tensor) -> None:
    """Move the running statistics as one worker would; `_take_changes` shares out what they moved by."""
    counted = layer.num_batches_tracked
    if counted is not None:
        counted.add_(1)
    momentum = layer.momentum
    if momentum is None:
        momentum = 1 / float(counted) if counted is not None else 0.0
    for running, now in ((layer.running_mean, mean), (layer.running_var, unbiased)):
        if running is not None:
            running.mul_(1 - momentum).add_(now.to(running.dtype), alpha=momentum)


@final
class _Normalised(torch.autograd.Function):
    """Normalises with the given moments, which are functions of all workers' rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: float,
        eps: float,
        peers: Peers,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.count, ctx.eps, ctx.peers, ctx.counts = count, eps, peers, peers.counts
        return torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        inverse = (var + ctx.eps).rsqrt()
        unit = torch.ones_like(mean) if weight is None else weight
        _, along, total = _backward(slope, x, unit, None, None, mean, inverse, True, ctx.eps, [False, True, True])
        grads = along if ctx.needs_input_grad[1] else None, total if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, *grads, None, None, None, None, None
        mine = torch.stack([total, along]).double()
        total, along = (ctx.peers.sum_(mine) / ctx.count).to(mean.dtype)
        if not ctx.counts:
            return torch.zeros_like(x), *grads, None, None, None, None, None
        # dx = weight · inverse · (dy - mean(dy) - x̂ · mean(dy · x̂)), as a·dy + b·x + c of each channel
        shape = [1, -1, *[1] * (x.dim() - 2)]
        a = unit * inverse
        b = -a * inverse * along
        c = -a * total - b * mean
        dx = torch.addcmul(c.view(shape), x, b.view(shape)).addcmul_(slope, a.view(shape))
        return dx.to(x.dtype), *grads, None, None, None, None, None
