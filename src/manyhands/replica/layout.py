"""Lay a network's weights and gradients out in one flat tensor each, with the network's own tensors as views."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from manyhands.errors import check
from manyhands.replica.optimizer.groups import Group, NamedGroup, Weight


@dataclass
class Layout:
    """The flat tensors, and where each weight and each buffer that a forward pass changes lies in them."""

    params: Tensor
    grads: Tensor
    num_weights: int
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    """The groups of the optimiser, one after the other; a single one where the task makes none."""
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Whole-number buffers (`num_batches_tracked`): kept as copies, since their type is not the weights'."""
    views: list[tuple[nn.Module, str, Tensor]] = field(default_factory=list)
    """All other buffers: the layer, the buffer's name there, and its view of `params`."""


def lay_out(module: nn.Module, moving: tuple[str, ...], groups: Sequence[NamedGroup] = ()) -> Layout:
    """Move every weight, group by group, and behind them the buffers named in `moving`, into flat tensors."""
    named = {n: p for n, p in module.named_parameters() if p.requires_grad}
    check(bool(named), "the model has no trainable parameters")
    groups = groups or [NamedGroup(tuple(named))]
    weights = [(n, named[n]) for group in groups for n in group.names]
    assert {n for n, _ in weights} == named.keys(), "every weight is in one group"
    buffers = [(n, b) for n, b in module.named_buffers() if n in moving]
    first = weights[0][1]
    num_weights = sum(p.numel() for _, p in weights)
    total = num_weights + sum(b.numel() for _, b in buffers)
    params = torch.zeros(total, dtype=first.dtype, device=first.device)
    layout = Layout(params, torch.zeros_like(params), num_weights)
    start = 0
    for group in groups:
        begin, places = start, []
        for name in group.names:
            p = named[name]
            stop = start + p.numel()
            layout.spans[name] = (start, stop)
            view = _like(p, params[start:stop])
            view.copy_(p.detach())
            p.data = view
            p.grad = _like(p, layout.grads[start:stop])
            places.append(Weight(start, stop, tuple(view.shape), view.stride()))
            start = stop
        layout.groups.append(Group(begin, start, tuple(places), group.options, group.from_epoch))
    for name, b in buffers:
        stop = start + b.numel()
        layout.spans[name] = (start, stop)
        params[start:stop].copy_(b.detach().reshape(-1))
        if b.is_floating_point():
            parent, _, leaf = name.rpartition(".")
            layer, view = module.get_submodule(parent), params[start:stop].view(b.shape)
            layer.register_buffer(leaf, view)
            layout.views.append((layer, leaf, view))
        else:
            layout.counters[name] = (start, stop)
        start = stop
    return layout


def _like(p: Tensor, flat: Tensor) -> Tensor:
    """View a flat span with the shape and the strides of `p`.

    Autograd copies where the strides differ, and a convolution with one input channel picks its memory format by them.
    """
    dense = p.is_contiguous() or (p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last))
    return flat.as_strided(p.shape, p.stride()) if dense else flat.view(p.shape)
