"""Check by a few trial steps on small tensors that an optimiser treats every weight alike.

A replica's optimiser has one flat vector, of which some strategies give each rank a slice; the learning rate is set
before every step, and the state is taken out and put back when a run is resumed. An optimiser that uses a whole tensor
(its norm, its shape) would silently give other weights than in plain torch.
"""

import torch
from torch import Tensor
from torch.optim import Optimizer

from manyhands.errors import ManyhandsError, UserError, check
from manyhands.replica.traits import untouched_generator
from manyhands.replica.update import OptimizerFactory, Update, stepper

SHAPES = ((7, 9), (9,), (2, 4, 7))
"""Shapes of the tensors that hold the weights in plain torch."""
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
NUM_WEIGHTS = sum(SIZES)
WHOLE, SLICES = (0, NUM_WEIGHTS), ((0, 64), (64, NUM_WEIGHTS))
SCALES = (1.0, 1e-3, 1e3, 1.0, 1e6, 1e-2)
"""Factor of the gradients in each step: some are so large that clipping shows."""
RATES = (1.0, 1.0, 0.5, 0.5, 0.25, 1.0)
"""Factor of the learning rate in each step, as in a warm-up or a decay."""
TOLERANCE = 1e-9
"""Relative difference, in float64, that rounding may make."""

HINT = "use one that treats every weight alike, such as SGD, Adam, AdamW, RMSprop or Adagrad"
CHANGES_RATE = (
    "changes its learning rate by itself or by a scheduler, which would be undone in every step; use --warmup and "
    "--lr-decay"
)


def check_optimizer(factory: OptimizerFactory, device: torch.device, task: str) -> None:
    """Raise a UserError if the optimiser would not do on n workers what it does in plain torch."""
    with untouched_generator(device) as drawn:
        name = f"the optimiser {_check_groups(factory, device, task)} of '{task}'"
        try:
            flat = _flat(factory, device, name)
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
            _close(flat, torch.cat([_flat(factory, device, name, span) for span in SLICES])),
            f"{name} gives slices of the weights other values than all of them at once, as clipping by their common "
            f"norm does; {HINT}",
        )
        check(
            _close(flat, _flat(factory, device, name, resume_at=3)),
            f"{name} keeps something outside its state, so that a run could not be resumed; {HINT}",
        )


def _check_groups(factory: OptimizerFactory, device: torch.device, task: str) -> str:
    """Check the optimiser's class and parameter groups; return the name of its class."""
    weights = _normal(len(SCALES), device)
    try:
        optimizer = factory([weights])
    except Exception as error:
        message = f"the optimiser of '{task}' cannot be made for one flat vector: {_first_line(error)}; {HINT}"
        raise UserError(message) from error
    kind = type(optimizer).__name__
    check(isinstance(optimizer, Optimizer), f"the optimiser of '{task}' is a {kind}, not a torch.optim.Optimizer")
    name, groups = f"the optimiser {kind} of '{task}'", optimizer.param_groups
    check(
        len(groups) == 1,
        f"{name} has {len(groups)} parameter groups, and one is allowed: all weights are one flat vector",
    )
    params = groups[0]["params"]
    check(
        len(params) == 1 and params[0] is weights,
        f"{name} does not hold the parameters that its function was given",
    )
    check("lr" in groups[0], f"{name} has no learning rate 'lr' in its parameter group")
    # Every scheduler of torch leaves its starting rate in the group.
    check("initial_lr" not in groups[0], f"{name} {CHANGES_RATE}")
    return kind


def _flat(
    factory: OptimizerFactory, device: torch.device, name: str, span: tuple[int, int] = WHOLE, resume_at: int = -1
) -> Tensor:
    """Return a span of one flat vector after all steps; before step `resume_at`, a new optimiser takes over."""
    weights = _normal(len(SCALES), device)
    update = Update(weights, torch.zeros_like(weights), NUM_WEIGHTS, factory)
    rate = float(update.optimizer.param_groups[0]["lr"])
    update.narrow(*span)
    for step in range(len(SCALES)):
        if step == resume_at:
            trained, state = weights.clone(), update.moments()
            weights.copy_(_normal(len(SCALES), device))  # as a resumed run makes its optimiser before it restores
            update = Update(weights, update.grads, NUM_WEIGHTS, factory)
            weights.copy_(trained)
            update.set_moments(state)
        update.grads.copy_(_normal(step, device, SCALES[step]))
        update.scale = RATES[step]
        update.apply()
        kept = float(update.optimizer.param_groups[0]["lr"]) == rate * RATES[step]
        check(kept, f"{name} {CHANGES_RATE}")
    return weights[slice(*span)]


def _in_plain_torch(factory: OptimizerFactory, device: torch.device) -> Tensor:
    """Return the weights after all steps over tensors of several shapes."""
    weights = _normal(len(SCALES), device)
    tensors = [part.view(shape) for part, shape in zip(torch.split(weights, SIZES), SHAPES, strict=True)]
    optimizer = factory(tensors)
    step, rates = stepper(optimizer), [float(group["lr"]) for group in optimizer.param_groups]
    for i, scale in enumerate(RATES):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * scale
        for tensor, grad in zip(tensors, torch.split(_normal(i, device, SCALES[i]), SIZES), strict=True):
            tensor.grad = grad.view_as(tensor)
        step()
    return weights


def _normal(seed: int, device: torch.device, scale: float = 1.0) -> Tensor:
    """Return the weights, if the seed is the number of steps, or the gradient of the step that is the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_WEIGHTS, dtype=torch.float64, generator=generator).mul_(scale).to(device)


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * 1e-3 * float(a.abs().max()), equal_nan=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
