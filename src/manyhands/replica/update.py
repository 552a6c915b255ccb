"""A replica's optimiser: its step, its restriction to a slice of the weights, and its state for checkpoints."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from manyhands.errors import check

OptimizerFactory = Callable[[list[Tensor]], Optimizer]
"""Makes the optimiser of one flat parameter; it must treat every element alike (SGD, Adam, ...)."""

ALIGNED = 64
"""Slices begin at multiples of this: vector kernels compute a tensor's last values one by one, with other rounding."""


def cut_aligned(length: int, parts: int) -> list[tuple[int, int]]:
    """Cut a flat tensor into nearly equal slices in which the optimiser computes the same bits as in the whole."""
    width = -(-length // (parts * ALIGNED)) * ALIGNED
    return [(min(i * width, length), min((i + 1) * width, length)) for i in range(parts)]


class Moments(NamedTuple):
    """An optimiser's state of a flat parameter."""

    elements: Tensor
    """A row for each quantity kept per weight (momentum; Adam's two); no row before the first step."""
    scalars: Tensor
    """Quantities kept once, such as Adam's count of steps, as float64."""


@final
class Update:
    """Updates the weights from their gradients, and adds the changes of the running statistics behind them."""

    def __init__(self, params: Tensor, grads: Tensor, num_weights: int, factory: OptimizerFactory) -> None:
        self._params, self.grads, self.num_weights, self._factory = params, grads, num_weights, factory
        self.scale = 1.0
        """Factor of the learning rate in the next step, for warm-up and decay."""
        self.steps = 0
        self.on_apply: Callable[[int], None] | None = None
        """Called after each step with the number of steps so far."""
        self._hold(0, params.numel())
        self._lr = float(self.optimizer.param_groups[0]["lr"])

    def apply(self) -> None:
        """Make one step over the current slice."""
        self.optimizer.param_groups[0]["lr"] = self._lr * self.scale
        self._step()
        if self._statistics.numel():
            self._statistics += self._changes
        self.steps += 1
        if self.on_apply is not None:
            self.on_apply(self.steps)

    def narrow(self, start: int, stop: int) -> None:
        """Restrict the optimiser to this slice of the flat weights and statistics, and keep its state of the slice."""
        state = self.moments()
        first = min(self.start, self.num_weights)
        a, b = (min(i, self.num_weights) - first for i in (start, stop))
        self._hold(start, stop)
        self.set_moments(Moments(state.elements[:, a:b], state.scalars))

    def moments(self) -> Moments:
        """Return a copy of the optimiser's state of the current slice."""
        per_weight, once = self._kinds()
        state = self.optimizer.state.get(self._weights, {})
        rows = [state[key] for key in per_weight] if state else []
        empty = self._weights.new_empty(0, self._weights.numel())
        scalars = [float(state[key]) for key in once] if state else []
        return Moments(torch.stack(rows) if rows else empty, torch.tensor(scalars, dtype=torch.float64))

    def set_moments(self, moments: Moments) -> None:
        """Replace the optimiser's state of the current slice."""
        per_weight, once = self._kinds()
        state: dict[str, Any] = {}
        counts = len(moments.elements), len(moments.scalars)
        fits = counts == (len(per_weight), len(once))
        check(fits or counts == (0, 0), "the optimiser's state is that of another optimiser; go on with the one it had")
        if fits:
            here = self._weights.device  # a checkpoint's rows come from the CPU
            state.update({key: row.to(here, copy=True) for key, row in zip(per_weight, moments.elements, strict=True)})
            for (key, like), value in zip(once.items(), moments.scalars.tolist(), strict=True):
                state[key] = torch.full_like(like, value) if isinstance(like, Tensor) else type(like)(value)
        self.optimizer.state.clear()  # torch's own load_state_dict would turn scalars into the weights' type
        if state:
            self.optimizer.state[self._weights] = state

    def _hold(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        n = self.num_weights
        self._weights = self._params[min(start, n) : min(stop, n)]
        self._weights.grad = self.grads[min(start, n) : min(stop, n)]
        self._statistics = self._params[max(start, n) : max(stop, n)]
        self._changes = self.grads[max(start, n) : max(stop, n)]
        self.optimizer = self._factory([self._weights])
        self._step = stepper(self.optimizer)

    def _kinds(self) -> tuple[list[str], dict[str, Any]]:
        """Return the keys of the state per weight, and the values kept once, after a trial step of a single weight."""
        if is_plain(self.optimizer):
            return [], {}
        probe = torch.zeros(1, dtype=self._params.dtype, device=self._params.device)
        probe.grad = torch.zeros_like(probe)
        optimizer = self._factory([probe])
        stepper(optimizer)()
        state = {key: value for key, value in optimizer.state.get(probe, {}).items() if value is not None}
        once = {k: v for k, v in sorted(state.items()) if not isinstance(v, Tensor) or v.dim() == 0}
        for key, value in once.items():
            plain = isinstance(value, int | float | bool | Tensor)
            check(plain, f"the optimiser's state '{key}' cannot be checkpointed or shared out")
        return sorted(state.keys() - once.keys()), once


def _leave_compiler_out() -> None:
    """Keep the first call of an optimiser from importing torch's compiler, which takes as long as torch itself.

    Optimisers import it only to exclude themselves from compilation, which is never used here.
    """
    for method in vars(Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inner is not None and getattr(method, "__module__", "") == "torch.optim.optimizer":
            inner.__dict__.setdefault("__dynamo_disable", inner)


_leave_compiler_out()


def stepper(optimizer: Optimizer) -> Callable[[], object]:
    """Return a function that makes one step; plain SGD over one flat tensor is a single addition.

    Torch's own optimisers are called without their wrappers, which import the compiler too.
    """
    if is_plain(optimizer):
        (weights,) = optimizer.param_groups[0]["params"]
        # The group is looked up anew, since loading a state replaces it.
        return torch.no_grad()(lambda: weights.add_(weights.grad, alpha=-optimizer.param_groups[0]["lr"]))
    from_torch = type(optimizer).__module__.startswith("torch.optim.")
    if not from_torch or _has_hooks(optimizer) or optimizer.defaults.get("differentiable"):
        return optimizer.step
    step = inspect.unwrap(type(optimizer).step)
    return torch.no_grad()(lambda: step(optimizer))


def is_plain(optimizer: Optimizer) -> bool:
    """Return whether the optimiser is SGD without state, and without hooks around its step."""
    (group,) = optimizer.param_groups
    extras = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
    alone = type(optimizer) is SGD and len(group["params"]) == 1 and not _has_hooks(optimizer)
    return alone and not any(group[name] for name in extras)


def _has_hooks(optimizer: Optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
