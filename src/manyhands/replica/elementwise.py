"""Find out by a few trial steps on small tensors what an optimiser looks at together.

Where it treats every element alike, the weights of a group are one flat tensor, of which some strategies give each rank
a slice. One that uses a whole tensor (its norm, its shape) gets the weights in their shapes, and slices are cut between
tensors; one that uses all of them together (their common norm) is run by one rank.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from manyhands.errors import ManyhandsError, UserError, check
from manyhands.replica.optimizer.groups import (
    ELEMENTS,
    TENSORS,
    Grain,
    Group,
    OptimizerFactory,
    OptimizerRecipe,
    Weight,
    as_recipe,
)
from manyhands.replica.traits import untouched_generator
from manyhands.replica.update import Update

SHAPES = {
    0: ((), ()),
    1: ((70,), (9,)),
    2: ((9, 11), (6, 7)),
    3: ((3, 5, 7), (2, 4, 3)),
    4: ((3, 4, 3, 3), (2, 2, 3, 3)),
}
"""Shapes of a group's tensors in the trial, for each number of dimensions that its weights have."""
SLICES = 4
SCALES = (1.0, 1e-3, 1e3, 1.0, 1e6, 1e-2)
"""Factor of the gradients in each step: some are so large that clipping shows."""
RATES = (1.0, 1.0, 0.5, 0.5, 0.25, 1.0)
"""Factor of the learning rate in each step, as in a warm-up or a decay."""
TOLERANCE = 1e-9
"""Relative difference, in float64, that rounding may make."""

CHANGES_RATE = (
    "changes its learning rate by itself or by a scheduler, which would be undone in every step; give the scheduler as "
    "Task(scheduler=lambda optimizer: ...), or use --warmup and --lr-decay"
)


def with_grain(recipe: OptimizerRecipe, groups: Sequence[Group], device: torch.device) -> OptimizerRecipe:
    """Return the recipe with what its optimiser looks at together; a trial tells it where it is not known.

    Every rank makes that trial, with the same result.
    """
    return recipe if recipe.grain is not None else replace(recipe, grain=_grain_of(recipe, groups, device))


def check_optimizer(
    recipe: OptimizerRecipe | OptimizerFactory, device: torch.device, groups: Sequence[Group] = ()
) -> Grain:
    """Raise a UserError if the optimiser cannot do on n workers what it does on one; tell what it looks at together."""
    with untouched_generator(device) as drawn:
        return _grain_of(as_recipe(recipe), groups, device, drawn)


def _grain_of(
    recipe: OptimizerRecipe, groups: Sequence[Group], device: torch.device, drawn: Callable[[], bool] | None = None
) -> Grain:
    groups = _in_small(groups)
    recipe = replace(recipe, clip=0.0, scheduler=None)
    name = f"the optimiser {_check_groups(recipe, groups, device)} of '{recipe.task}'"
    try:
        whole = _after_steps(recipe, groups, TENSORS, device, name)
    except ManyhandsError:
        raise
    except Exception as error:
        raise UserError(f"a step of {name} failed: {_first_line(error)}") from error
    draws = drawn is not None and drawn()
    check(not draws, f"{name} draws random numbers, which n workers would draw otherwise than one; use one without")
    grain = next(grain for grain in _grains() if _gives(whole, recipe, groups, grain, device, name))
    if drawn is None:  # on a rank: checked before it was started
        return grain
    again = _after_steps(recipe, groups, grain, device, name, resume_at=3)
    check(_close(whole, again), f"{name} keeps something outside its state, so that a run could not be resumed")
    return grain


def _grains() -> tuple[Grain, ...]:
    """Return the grains to try, the most useful first; the last one always holds."""
    return ELEMENTS, TENSORS, Grain(flat=False, apart=False)


def _gives(
    whole: Tensor, recipe: OptimizerRecipe, groups: Sequence[Group], grain: Grain, device: torch.device, name: str
) -> bool:
    """Tell whether the slices that a grain allows get the weights that the optimiser gives whole tensors."""
    if not grain.apart:
        return True
    try:
        slices = [_after_steps(recipe, groups, grain, device, name, part=part) for part in range(SLICES)]
        one = _after_steps(recipe, groups, grain, device, name)
    except Exception:  # such as one that takes matrices alone
        return False
    return _close(whole, one) and _close(whole, torch.cat(slices))


def _check_groups(recipe: OptimizerRecipe, groups: Sequence[Group], device: torch.device) -> str:
    """Check the optimiser's class and parameter groups; return the name of its class."""
    flat = _normal(len(SCALES), groups[-1].stop, device)
    tensors = [[weight.of(flat) for weight in group.weights] for group in groups]
    task = recipe.task
    try:
        optimizer = recipe.optimizer(tensors, groups)
    except Exception as error:
        hint = "" if recipe.groups else "; param_groups and an optimiser of your own can treat some weights otherwise"
        message = f"the optimiser of '{task}' cannot be made for the model's weights: {_first_line(error)}{hint}"
        raise UserError(message) from error
    kind = type(optimizer).__name__
    check(isinstance(optimizer, Optimizer), f"the optimiser of '{task}' is a {kind}, not a torch.optim.Optimizer")
    name, made = f"the optimiser {kind} of '{task}'", optimizer.param_groups
    check(
        len(made) == len(groups),
        f"{name} has {len(made)} parameter groups where {len(groups)} are wanted; make them with "
        "Task(param_groups=lambda model: [...]), which hands them to the optimiser's function",
    )
    for group, given in zip(made, tensors, strict=True):
        same = len(group["params"]) == len(given) and all(map(_is, group["params"], given))
        check(same, f"{name} does not hold the parameters that its function was given")
        check("lr" in group, f"{name} has no learning rate 'lr' in its parameter group")
        # Every scheduler of torch leaves its starting rate in the group.
        check("initial_lr" not in group, f"{name} {CHANGES_RATE}")
    return kind


def _is(a: object, b: object) -> bool:
    return a is b


def _in_small(groups: Sequence[Group]) -> list[Group]:
    """Return groups of small tensors with as many dimensions as the weights; those of any network if there are none."""
    small, start = [], 0
    for group in groups or [Group(0, 0)]:
        begin, weights = start, []
        dims = dict.fromkeys(len(weight.shape) for weight in group.weights) if groups else (2, 1, 3)
        for shape in itertools.chain(*(SHAPES.get(n, ((2,) * n,) * 2) for n in dims)):
            size = torch.Size(shape)
            weights.append(Weight(start, start + size.numel(), tuple(shape), torch.empty(size).stride()))
            start += size.numel()
        # A group that begins later is left out of the first step.
        small.append(Group(begin, start, tuple(weights), group.options, min(1, group.from_epoch)))
    return small


def _after_steps(
    recipe: OptimizerRecipe,
    groups: Sequence[Group],
    grain: Grain,
    device: torch.device,
    name: str,
    *,
    part: int | None = None,
    resume_at: int = -1,
) -> Tensor:
    """Return a slice of the weights after all steps, or all; before step `resume_at`, a new optimiser takes over."""
    recipe, total = replace(recipe, grain=grain), groups[-1].stop
    weights = _normal(len(SCALES), total, device)
    update = Update(weights, torch.zeros_like(weights), total, recipe, groups)
    rates = [float(group["lr"]) for group in update.optimizer.param_groups]
    span = (0, total) if part is None else update.cut(SLICES)[part]
    update.narrow(*span)
    for step in range(len(SCALES)):
        if step == resume_at:
            trained, state = weights.clone(), update.moments()
            weights.copy_(_normal(len(SCALES), total, device))  # as a resumed run makes its optimiser first
            update = Update(weights, update.grads, total, recipe, groups)
            weights.copy_(trained)
            update.set_moments(state)
        update.grads.copy_(_normal(step, total, device, SCALES[step]))
        update.scale = RATES[step]
        if update.rates is not None:
            update.use(update.rates.at(step, 1))
        update.apply()
        if part is None:
            now = [float(group["lr"]) for group in update.optimizer.param_groups]
            check(now == [rate * RATES[step] for rate in rates], f"{name} {CHANGES_RATE}")
    return weights[slice(*span)]


def _normal(seed: int, length: int, device: torch.device, scale: float = 1.0) -> Tensor:
    """Return the weights, if the seed is the number of steps, or the gradient of the step that is the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, dtype=torch.float64, generator=generator).mul_(scale).to(device)


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * 1e-3 * float(a.abs().max()), equal_nan=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
