"""Whether an optimiser treats every weight alike: found out by a few steps on small tensors.

A replica's optimiser has one flat vector, of which some strategies give each rank a slice; the learning rate is set
before every step, and the state is taken out and put back when a run is resumed. An optimiser that looks at a whole
tensor (its norm, its shape) would go another way than in plain torch, without a word.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from manyhands.errors import ManyhandsError, UserError, check
from manyhands.replica.traits import untouched_generator
from manyhands.replica.update import OptimizerFactory, Update, stepper

SHAPES = ((7, 9), (9,), (2, 4, 7))
"""Of the tensors in which plain torch would hold the weights."""
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
NUM_WEIGHTS = sum(SIZES)
SLICES = ((0, 64), (64, NUM_WEIGHTS))
SCALES = (1.0, 1e-3, 1e3, 1.0, 1e6, 1e-2)
"""Of the gradients of each step: some so large that clipping shows."""
RATES = (1.0, 1.0, 0.5, 0.5, 0.25, 1.0)
"""Of the learning rate in each step, as in a warm-up or a decay."""
RESUMED_AFTER = 3
TOLERANCE = 1e-9
"""Relative difference, in float64, that rounding may make."""

HINT = "use one that treats every weight alike, such as SGD, Adam, AdamW, RMSprop or Adagrad"


def check_optimizer(factory: OptimizerFactory, device: torch.device, task: str) -> None:
    """Refuse, in one sentence, an optimiser that would not do on n workers what it does in plain torch."""
    with untouched_generator(device) as drawn:
        name = f"the optimiser {_check_groups(factory, device, task)} of '{task}'"
        try:
            flat = _in_slices(factory, device, name, [(0, NUM_WEIGHTS)])
        except ManyhandsError:
            raise
        except Exception as error:
            raise UserError(f"{name} cannot step over one flat vector: {_first_line(error)}; {HINT}") from error
        check(not drawn(), f"{name} draws random numbers, which n workers would draw otherwise than one; {HINT}")
        check(
            _close(flat, _in_plain_torch(factory, device)),
            f"{name} gives one flat vector other weights than the model's own tensors, since it looks at whole tensors "
            f"or at their shapes; {HINT}",
        )
        check(
            _close(flat, _in_slices(factory, device, name, SLICES)),
            f"{name} gives slices of the weights other values than all of them at once, as clipping by their common "
            f"norm does; {HINT}",
        )
        check(
            _close(flat, _resumed(factory, device)),
            f"{name} keeps something outside its state, so that a run could not be resumed; {HINT}",
        )


def _check_groups(factory: OptimizerFactory, device: torch.device, task: str) -> str:
    """Refuse what is wrong at sight; return the optimiser's name."""
    weights = _weights(device)
    try:
        optimizer = factory([weights])
    except Exception as error:
        says = f"the optimiser of '{task}' cannot be made for one flat vector: {_first_line(error)}; {HINT}"
        raise UserError(says) from error
    kind = type(optimizer).__name__
    check(isinstance(optimizer, Optimizer), f"the optimiser of '{task}' is a {kind}, not a torch.optim.Optimizer")
    groups = optimizer.param_groups
    check(
        len(groups) == 1,
        f"the optimiser {kind} of '{task}' has {len(groups)} parameter groups, and one is allowed: all weights are one "
        "flat vector",
    )
    held = groups[0]["params"]
    check(
        len(held) == 1 and held[0] is weights,
        f"the optimiser {kind} of '{task}' does not hold the parameters that its function was given",
    )
    check("lr" in groups[0], f"the optimiser {kind} of '{task}' has no learning rate 'lr' in its parameter group")
    # Every scheduler of torch leaves its starting rate in the group.
    check("initial_lr" not in groups[0], _own_rate(f"the optimiser {kind} of '{task}'"))
    return kind


def _own_rate(name: str) -> str:
    return (
        f"{name} changes its learning rate by itself or by a scheduler, which would be undone in every step; "
        "use --warmup and --lr-decay"
    )


def _in_slices(factory: OptimizerFactory, device: torch.device, name: str, slices: Sequence[tuple[int, int]]) -> Tensor:
    """Make all steps, each slice with an optimiser of its own, as the ranks of a strategy do."""
    found = []
    for start, stop in slices:
        weights, update = _update(factory, device)
        rate = float(update.optimizer.param_groups[0]["lr"])
        update.narrow(start, stop)
        for step in range(len(SCALES)):
            _make(update, step)
            check(float(update.optimizer.param_groups[0]["lr"]) == rate * RATES[step], _own_rate(name))
        found.append(weights[start:stop])
    return torch.cat(found)


def _in_plain_torch(factory: OptimizerFactory, device: torch.device) -> Tensor:
    """Make all steps over tensors of several shapes."""
    weights = _weights(device)
    tensors = [part.view(shape) for part, shape in zip(torch.split(weights, SIZES), SHAPES, strict=True)]
    optimizer = factory(tensors)
    step, rates = stepper(optimizer), [float(group["lr"]) for group in optimizer.param_groups]
    for i, scale in enumerate(RATES):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * scale
        for tensor, grad in zip(tensors, torch.split(_gradient(i, device), SIZES), strict=True):
            tensor.grad = grad.view_as(tensor)
        step()
    return weights


def _resumed(factory: OptimizerFactory, device: torch.device) -> Tensor:
    """Make all steps, the last of them with a new optimiser that got weights and state from the first."""
    weights, update = _update(factory, device)
    for step in range(RESUMED_AFTER):
        _make(update, step)
    again, resumed = _update(factory, device)
    again.copy_(weights)
    resumed.set_moments(update.moments())
    for step in range(RESUMED_AFTER, len(SCALES)):
        _make(resumed, step)
    return again


def _update(factory: OptimizerFactory, device: torch.device) -> tuple[Tensor, Update]:
    weights = _weights(device)
    return weights, Update(weights, torch.zeros_like(weights), NUM_WEIGHTS, factory)


def _make(update: Update, step: int) -> None:
    update.grads.copy_(_gradient(step, update.grads.device))
    update.scale = RATES[step]
    update.apply()


def _weights(device: torch.device) -> Tensor:
    return _drawn(len(SCALES)).to(device)


def _gradient(step: int, device: torch.device) -> Tensor:
    return _drawn(step).mul_(SCALES[step]).to(device)


def _drawn(seed: int) -> Tensor:
    return torch.randn(NUM_WEIGHTS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _close(some: Tensor, others: Tensor) -> bool:
    return torch.allclose(some, others, rtol=TOLERANCE, atol=TOLERANCE * 1e-3 * float(some.abs().max()), equal_nan=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
