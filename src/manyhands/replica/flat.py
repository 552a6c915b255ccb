"""The general replica: any `nn.Module`, by autograd into flat gradients."""

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from manyhands.config import Precision
from manyhands.replica.base import Batch, Replica
from manyhands.replica.criterion import Criterion
from manyhands.replica.drawing import keyed
from manyhands.replica.layout import Layout
from manyhands.replica.nested import Nested, call, map_tensors
from manyhands.replica.optimizer.groups import OptimizerRecipe
from manyhands.replica.peers import Peers
from manyhands.replica.precision import LossScale, autocast
from manyhands.replica.random import Draws, seed_generators
from manyhands.replica.update import Update


@final
class FlatReplica(Replica):
    """Autograd over views into flat tensors: one zeroing, one all-reduce, one optimiser call per step."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        criterion: Criterion,
        recipe: OptimizerRecipe,
        draws: Draws,
        reseed: bool,
        peers: Peers,
        precision: Precision = "fp32",
    ) -> None:
        self.module, self._layout, self.draws, self._reseed, self.peers = module, layout, draws, reseed, peers
        self.criterion, self.precision, self.loss_scale = criterion, precision, LossScale(precision)
        self.params, self.grads, self.spans = layout.params, layout.grads, layout.spans
        n = layout.num_weights
        self._statistics, self._changes = self.params[n:], self.grads[n:]
        self.update = Update(self.params, self.grads, n, recipe, layout.groups)
        self._ready: list[Callable[[int, int], None]] = []

    def forward_backward(self, batch: Batch, weight: float) -> Tensor:
        self.grads.zero_()
        nothing = torch.zeros((), dtype=self.params.dtype, device=self.params.device)
        meets, self.peers.counts = self.meets and self.peers.size > 1, batch.rows > 0
        if batch.rows == 0 and not meets:
            return nothing
        self.draws.at(batch.key, batch.first, max(1, batch.rows))
        if self._reseed:
            seed_generators(batch.key ^ batch.first)
        self.refresh()
        before = self._statistics.clone() if self._statistics.numel() else None
        loss = self._pass(batch, weight, meets=meets)
        if before is not None:
            self._take_changes(before, weight if batch.share is None else batch.share)
            for fn in self._ready if self._announces_now else ():
                fn(self._layout.num_weights, self.grads.numel())
        return nothing if loss is None else loss.detach()

    def _pass(self, batch: Batch, weight: float, *, meets: bool) -> Tensor | None:
        """Pass rows forward and backward; return `weight` times their loss, None for rows that count nothing.

        The loss of those may be NaN, as that of padding alone is: only the layers that meet others are passed.
        """
        with autocast(self.precision, self.params.device), keyed(self.draws):
            output = call(self.module, batch.x)
            if weight:
                loss = self.criterion.loss(output, batch.y)
            elif meets:
                used = _used_by(self.criterion, output, batch.y)
        if weight:
            loss = loss.to(self.params.dtype) * weight
            scale = self.loss_scale.factor
            (loss * scale if scale != 1 else loss).backward()  # type: ignore[no-untyped-call]
            if scale != 1:
                self.grads /= scale
            return loss
        if meets:
            torch.autograd.backward(used, [torch.zeros_like(t) for t in used])
        return None

    def accepts(self) -> bool:
        return self.loss_scale.accepts(self.grads, self.peers)

    def extras(self) -> dict[str, Tensor]:
        return {"loss_scale": self.loss_scale.state} if self.loss_scale.active else {}

    def refresh(self) -> None:
        """Set the whole-number buffers from `params`."""
        for name, (start, stop) in self._layout.counters.items():
            counter = self.module.get_buffer(name)
            counter.copy_(self.params[start:stop].round().view(counter.shape))

    def on_grad_ready(self, fn: Callable[[int, int], None]) -> None:
        """Hook every weight's gradient accumulation; the changes of the statistics are final after backward."""
        self._ready.append(fn)
        for name, p in self.module.named_parameters():
            if name in self.spans:
                hook = partial(self._announce, fn, self.spans[name])
                p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @property
    def _announces_now(self) -> bool:
        """Whether spans are told before the pass ends: not where they may be changed yet, nor where layers meet.

        A worker without rows tells other spans than the rest, and what they begin would get between the layers' calls.
        """
        return self.announces and not self.loss_scale.active and not self.meets

    def _announce(self, fn: Callable[[int, int], None], span: tuple[int, int], _: Tensor) -> None:
        if self._announces_now:
            fn(*span)

    def _take_changes(self, before: Tensor, share: float) -> None:
        """Move into `grads` the share of what the forward pass changed in the statistics; undo it until `apply`."""
        n = self._layout.num_weights
        for layer, name, view in self._layout.views:
            now = layer._buffers[name]
            if now is not None and now is not view:  # the model assigned a new tensor instead of writing into the old
                view.copy_(now.detach())
                layer._buffers[name] = view
        for name, (start, stop) in self._layout.counters.items():
            counted = self.module.get_buffer(name).reshape(-1) - before[start - n : stop - n].round()
            self.params[start:stop].add_(counted)
        torch.sub(self._statistics, before, out=self._changes)
        self._changes.mul_(share)
        self._statistics.copy_(before)


def _used_by(criterion: Criterion, output: Nested, y: Nested) -> list[Tensor]:
    """Return the tensors of an output that the loss looks at."""
    outputs, leaves = list[Tensor](), list[Tensor]()

    def cut_off(t: Tensor) -> Tensor:
        if not t.requires_grad:
            return t
        outputs.append(t)
        leaves.append(t.detach().requires_grad_())
        return leaves[-1]

    loss = criterion.loss(map_tensors(cut_off, output), y)
    slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [t for t, slope in zip(outputs, slopes, strict=True) if slope is not None]
