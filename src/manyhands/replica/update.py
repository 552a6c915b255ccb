"""A replica's optimiser: its step, its restriction to a slice of the weights, and its state for checkpoints."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from manyhands.errors import check
from manyhands.replica.optimizer.groups import (
    ALIGNED,
    ELEMENTS,
    Grain,
    Group,
    OptimizerFactory,
    OptimizerRecipe,
    Weight,
    as_recipe,
    cut,
    cut_aligned,
)
from manyhands.replica.optimizer.moments import Form, Moments, form_of
from manyhands.replica.optimizer.norm import clip_factor, num_blocks, sums_of_squares, tree_sum
from manyhands.replica.optimizer.rates import NUMBERS, Rates, numbers_of, set_momentum

__all__ = ["ALIGNED", "Moments", "OptimizerFactory", "Update", "cut_aligned", "is_plain", "stepper"]


class TensorSpan(NamedTuple):
    """A span that the optimiser sees as one tensor, or slices of it where it treats every element alike."""

    group: int
    start: int
    stop: int
    weight: Weight | None = None
    """Its shape, where that counts."""

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return self.stop - self.start


class Part(NamedTuple):
    """What the current slice holds of a unit."""

    group: int
    start: int
    stop: int
    tensor: Tensor
    grad: Tensor


@final
class Update:
    """Updates the weights from their gradients, and adds the changes of the running statistics behind them."""

    def __init__(
        self,
        params: Tensor,
        grads: Tensor,
        num_weights: int,
        recipe: OptimizerRecipe | OptimizerFactory,
        groups: Sequence[Group] = (),
    ) -> None:
        self._params, self.grads, self.num_weights = params, grads, num_weights
        self.recipe, self.groups = as_recipe(recipe), tuple(groups) or (Group(0, num_weights),)
        self.grain: Grain = self.recipe.grain or ELEMENTS
        self._units = tuple(_units(self.groups, self.grain))
        self.scale = 1.0
        """Factor of the learning rate in the next step, for warm-up and decay."""
        self.clip = self.recipe.clip
        """Largest norm of the whole gradient; 0 for any."""
        self.join: Callable[[Tensor], Tensor] = lambda sums: sums
        """Joins the sums of squares of all slices, in their order, where other ranks hold some."""
        self.steps = 0
        self.on_apply: Callable[[int], None] | None = None
        """Called after each step with the number of steps so far."""
        self.rates = Rates(self.recipe, self.groups) if self.recipe.changes else None
        """What a scheduler, or the first epoch of a group, says of each step; for `use`."""
        self._numbers: tuple[float, ...] = ()
        self._lrs: tuple[float, ...] = ()
        self._forms: list[Form] | None = None
        self._hold(0, params.numel())
        self._numbers = numbers_of(self.optimizer)
        self._lrs = self._numbers[::NUMBERS]
        if self.rates is not None:
            self.use(self.rates.at(0, 1))

    def apply(self) -> None:
        """Make one step over the current slice."""
        if self.clip:
            self.clip_()
        for group, rate in zip(self.optimizer.param_groups, self._lrs, strict=False):
            group["lr"] = rate * self.scale
        self._step()
        if self._statistics.numel():
            self._statistics += self._changes
        self.steps += 1
        if self.on_apply is not None:
            self.on_apply(self.steps)

    def use(self, numbers: Sequence[float]) -> None:
        """Set what `Rates` says of the next steps, of each group: rate, momentum, and whether it trains."""
        if numbers == self._numbers:
            return
        self._numbers = tuple(numbers)
        self._lrs = self._numbers[::NUMBERS]
        for group, momentum in zip(self.optimizer.param_groups, numbers[1::NUMBERS], strict=False):
            set_momentum(group, momentum)
        trains = numbers[2::NUMBERS]
        for part in self._parts:
            part.tensor.grad = part.grad if trains[part.group] else None

    @property
    def settings(self) -> tuple[float, ...]:
        """The numbers that another rank needs to make the next step as this one would: a scale, and those of `use`."""
        return (self.scale,) if self.rates is None else (self.scale, *self._numbers)

    def use_settings(self, numbers: Sequence[float]) -> None:
        """Set what `settings` told on another rank."""
        self.scale = numbers[0]
        if self.rates is not None:
            self.use(tuple(numbers[1:]))

    def clip_(self, share: float = 1.0) -> None:
        """Scale the gradients of the slice down if the whole gradient, of which they are a `share`, is too large."""
        norm = math.sqrt(tree_sum(self.join(self._sums_of_squares()))) / share
        factor = clip_factor(self.clip, norm)
        if factor != 1:
            self.grads[min(self.start, self.num_weights) : min(self.stop, self.num_weights)] *= factor

    def cut(self, parts: int) -> list[tuple[int, int]]:
        """Cut weights and statistics into nearly equal slices, in which the optimiser makes the bits of the whole."""
        return cut(self.groups, self._params.numel(), self.grain, parts)

    def num_sums(self, start: int, stop: int) -> int:
        """Return how many sums of squares a slice has."""
        spans = ((max(unit.start, start), min(unit.stop, stop)) for unit in self._units)
        return sum(num_blocks(b - a) for a, b in spans if a < b)

    def narrow(self, start: int, stop: int) -> None:
        """Restrict the optimiser to this slice of the flat weights and statistics, and keep its state of the slice."""
        state = self.moments()
        first = min(self.start, self.num_weights)
        a, b = (min(i, self.num_weights) - first for i in (start, stop))
        self._hold(start, stop)
        self.set_moments(Moments(state.elements[:, a:b], state.scalars))

    def num_bytes(self) -> int:
        """Return the bytes of the optimiser's state of the current slice, without what is kept once."""
        values = (value for state in self.optimizer.state.values() for value in state.values())
        return sum(value.nbytes for value in values if isinstance(value, Tensor) and value.dim())

    def moments(self) -> Moments:
        """Return a copy of the optimiser's state of the current slice."""
        first, last = (min(i, self.num_weights) for i in (self.start, self.stop))
        forms, parts, flags = self._kinds(), self._by_unit(), self._has_flags
        states = [{} if p is None else self.optimizer.state.get(p.tensor, {}) for p in parts]
        if not flags and not any(states):
            return Moments(self._params.new_empty(0, last - first), torch.empty(0, dtype=torch.float64))
        elements = self._params.new_zeros(self._num_rows(forms), last - first)
        scalars: list[float] = []
        for unit, part, form, state in zip(self._units, parts, forms, states, strict=True):
            if part is not None:
                rows = elements[: form.rows(unit.numel), part.start - first : part.stop - first]
                form.pack(state, part.tensor, rows)
            scalars += form.numbers(state, flags=flags)
        return Moments(elements, torch.tensor(scalars, dtype=torch.float64))

    def set_moments(self, moments: Moments) -> None:
        """Replace the optimiser's state of the current slice."""
        forms, flags = self._kinds(), self._has_flags
        counts = len(moments.elements), len(moments.scalars)
        needed = self._num_rows(forms), sum(form.num_scalars(flags=flags) for form in forms)
        fits = counts == needed
        check(fits or counts == (0, 0), "the optimiser's state is that of another optimiser; go on with the one it had")
        self.optimizer.state.clear()  # torch's own load_state_dict would turn scalars into the weights' type
        if not any(counts):
            return
        first, numbers = min(self.start, self.num_weights), iter(moments.scalars.tolist())
        for unit, part, form in zip(self._units, self._by_unit(), forms, strict=True):
            of_unit = list(islice(numbers, form.num_scalars(flags=flags)))
            if part is None:
                continue
            rows = moments.elements[: form.rows(unit.numel), part.start - first : part.stop - first]
            state = form.unpack(rows, of_unit, part.tensor, flags=flags)
            if state:
                self.optimizer.state[part.tensor] = state

    @property
    def _has_flags(self) -> bool:
        """Whether some of the state may be there while other state is not."""
        return len(self._units) > 1 or not self.grain.flat or self.rates is not None

    def _num_rows(self, forms: Sequence[Form]) -> int:
        return max((f.rows(u.numel) for u, f in zip(self._units, forms, strict=True) if u.numel), default=0)

    def _hold(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        n = self.num_weights
        self._parts = list(self._parts_of(min(start, n), min(stop, n)))
        self._statistics = self._params[max(start, n) : max(stop, n)]
        self._changes = self.grads[max(start, n) : max(stop, n)]
        tensors: list[list[Tensor]] = [[] for _ in self.groups]
        for part in self._parts:
            part.tensor.grad = part.grad
            tensors[part.group].append(part.tensor)
        if self._parts:
            self.optimizer = self.recipe.optimizer(tensors, self.groups)
            self._step = stepper(self.optimizer, may_be_plain=self.rates is None)
        else:  # whole tensors, all of them on other ranks
            self.optimizer, self._step = SGD([self._params[:0]], lr=0.0), lambda: None
        numbers, self._numbers = self._numbers, ()
        if numbers:
            self.use(numbers)

    def _parts_of(self, start: int, stop: int) -> Iterator[Part]:
        for unit in self._units:
            if unit.weight is not None:
                inside = start <= unit.start and unit.stop <= stop
                assert inside or unit.stop <= start or stop <= unit.start, "slices are made of whole tensors"
                if inside and start < stop:
                    tensor, grad = unit.weight.of(self._params), unit.weight.of(self.grads)
                    yield Part(unit.group, unit.start, unit.stop, tensor, grad)
                continue
            a, b = (min(max(i, unit.start), unit.stop) for i in (start, stop))
            yield Part(unit.group, a, b, self._params[a:b], self.grads[a:b])

    def _by_unit(self) -> list[Part | None]:
        """Return the part of each unit, None where the current slice has nothing of a whole tensor."""
        if self.grain.flat:
            return list(self._parts)
        parts = {part.start: part for part in self._parts}
        return [parts.get(unit.start) for unit in self._units]

    def _sums_of_squares(self) -> Tensor:
        """Return the sum of squares of each block of the slice's gradients; 0 for groups that do not train."""
        sums = [
            sums_of_squares(self.grads[part.start : part.stop])
            * float(self._numbers[NUMBERS * part.group + NUMBERS - 1])
            for part in self._parts
            if part.start < part.stop
        ]
        return torch.cat(sums) if sums else self.grads.new_zeros(0, dtype=torch.float64)

    def _kinds(self) -> list[Form]:
        """Return the form of the state of every unit, after a trial step of each kind."""
        if self._forms is None:
            known: dict[Any, Form] = {}
            self._forms = [
                known.get(key) or known.setdefault(key, self._probe(unit))
                for unit in self._units
                for key in [(unit.group, unit.weight and (unit.weight.shape, unit.weight.stride))]
            ]
        return self._forms

    def _probe(self, unit: TensorSpan) -> Form:
        """Make a step of one weight, or of a tensor of the unit's shape, with the options of its group."""
        if self.grain.flat and len(self.groups) == 1 and self._parts and is_plain(self.optimizer):
            return Form({}, {}, {})
        like, weight = self._params, unit.weight
        probe = (
            like.new_zeros(1)
            if weight is None
            else torch.empty_strided(weight.shape, weight.stride, dtype=like.dtype, device=like.device).zero_()
        )
        probe.grad = torch.zeros_like(probe)
        optimizer = self.recipe.of_one(probe, self.groups[unit.group])
        if self.recipe.scheduler is not None:  # it may change a momentum of 0
            for group in optimizer.param_groups:
                set_momentum(group, 0.5)
        stepper(optimizer, may_be_plain=False)()
        return form_of(optimizer.state.get(probe, {}), probe, flat=self.grain.flat)


def _units(groups: Sequence[Group], grain: Grain) -> Iterator[TensorSpan]:
    for i, group in enumerate(groups):
        if grain.flat:
            yield TensorSpan(i, group.start, group.stop)
        else:
            yield from (TensorSpan(i, weight.start, weight.stop, weight) for weight in group.weights)


def _leave_compiler_out() -> None:
    """Keep the first call of an optimiser from importing torch's compiler, which takes as long as torch itself.

    Optimisers import it only to exclude themselves from compilation, which is never used here.
    """
    for method in vars(Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inner is not None and getattr(method, "__module__", "") == "torch.optim.optimizer":
            inner.__dict__.setdefault("__dynamo_disable", inner)


_leave_compiler_out()


def stepper(optimizer: Optimizer, *, may_be_plain: bool = True) -> Callable[[], object]:
    """Return a function that makes one step; plain SGD over one flat tensor is a single addition.

    Torch's own optimisers are called without their wrappers, which import the compiler too.
    """
    if may_be_plain and is_plain(optimizer):
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
    group, *others = optimizer.param_groups
    extras = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
    alone = type(optimizer) is SGD and not others and len(group["params"]) == 1 and not _has_hooks(optimizer)
    return alone and not any(group[name] for name in extras)


def _has_hooks(optimizer: Optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
