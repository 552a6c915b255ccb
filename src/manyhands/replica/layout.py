"""Lay a network's weights and gradients out in one flat tensor each, with the network's own tensors as views."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from manyhands.errors import check


@dataclass
class Layout:
    """The flat tensors, and where each weight and each moving buffer lies in them."""

    params: Tensor
    grads: Tensor
    num_weights: int
    spans: dict[str, tuple[int, int]]
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Whole-number buffers (`num_batches_tracked`): kept as copies, since their type is not the weights'."""


def lay_out(module: nn.Module, moving: tuple[str, ...]) -> Layout:
    """Move every weight, and every moving buffer behind them, into flat storage."""
    weights = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    check(bool(weights), "the model has no trainable parameters")
    buffers = [(n, b) for n, b in module.named_buffers() if n in moving]
    first = weights[0][1]
    num_weights = sum(p.numel() for _, p in weights)
    total = num_weights + sum(b.numel() for _, b in buffers)
    params = torch.zeros(total, dtype=first.dtype, device=first.device)
    layout = Layout(params, torch.zeros_like(params), num_weights, {})
    start = 0
    for name, p in weights:
        stop = start + p.numel()
        layout.spans[name] = (start, stop)
        view = _like(p, params[start:stop])
        view.copy_(p.detach())
        p.data = view
        p.grad = _like(p, layout.grads[start:stop])
        start = stop
    for name, b in buffers:
        stop = start + b.numel()
        layout.spans[name] = (start, stop)
        params[start:stop].copy_(b.detach().reshape(-1))
        if b.is_floating_point():
            _set_buffer(module, name, params[start:stop].view(b.shape))
        else:
            layout.counters[name] = (start, stop)
        start = stop
    return layout


def _like(p: Tensor, flat: Tensor) -> Tensor:
    """View a flat span with the shape and the very strides of `p`.

    Autograd copies where they differ, and a convolution with one input channel picks its layout by them.
    """
    dense = p.is_contiguous() or (p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last))
    return flat.as_strided(p.shape, p.stride()) if dense else flat.view(p.shape)


def _set_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner).register_buffer(leaf, value)
