"""The rates of each step by a scheduler of torch, and when a group begins to train.

The scheduler is made for a shadow of the run's optimiser, over tensors of one element: it changes the shadow's rates
only, which the workers then hand to whoever steps. It is stepped again from the start where a run is resumed.
"""

from collections.abc import Sequence
from typing import Any, Literal, final

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from manyhands.errors import ManyhandsError, UserError, check, kind_of
from manyhands.replica.optimizer.groups import Group, OptimizerRecipe

CHANGING = ("lr", "momentum", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
"""Options that a scheduler may change, and those that torch's own note in a group."""
NUMBERS = 3
"""Numbers of a group's settings: its rate, its momentum or first beta (0 if it has none), and whether it trains."""


@final
class Rates:
    """The settings of every group in each step."""

    def __init__(self, recipe: OptimizerRecipe, groups: Sequence[Group]) -> None:
        self._recipe, self._groups = recipe, groups
        self._begin()

    @property
    def watches(self) -> bool:
        """Whether the rates depend on the figures of evaluations."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    @property
    def better(self) -> Literal["higher", "lower"]:
        """Which of two figures a scheduler that watches them takes for the better one."""
        return "lower" if self._scheduler.mode == "min" else "higher"

    def at(self, step: int, steps_per_epoch: int, seen: Sequence[float] = ()) -> tuple[float, ...]:
        """Return the numbers of each group in a step, after evaluations that gave the figures `seen`."""
        epoch = step // steps_per_epoch
        due = step if self._recipe.every == "step" else epoch
        if self.watches:
            due = len(seen)
        if due < self._done:
            self._begin()
        while self._scheduler is not None and self._done < due:
            self._step(seen)
        numbers: list[float] = []
        for group, place in zip(self._shadow.param_groups, self._groups, strict=True):
            numbers += float(group["lr"]), momentum_of(group), float(epoch >= place.from_epoch)
        return tuple(numbers)

    def _begin(self) -> None:
        """Make shadow and scheduler anew."""
        self._done = 0
        tensors = [
            [torch.zeros([1] * dims) for dims in sorted({len(weight.shape) for weight in group.weights}) or [1]]
            for group in self._groups
        ]
        self._shadow = self._recipe.optimizer(tensors, self._groups)
        self._scheduler = self._make()
        self._fixed = self._others()

    def _make(self) -> Any:
        make = self._recipe.scheduler
        if make is None:
            return None
        task = self._recipe.task
        try:
            scheduler = make(self._shadow)
        except ManyhandsError:
            raise
        except Exception as error:
            raise UserError(f"making the scheduler of '{task}' failed: {_first_line(error)}") from error
        check(
            isinstance(scheduler, LRScheduler),
            f"the scheduler function of '{task}' returned {kind_of(scheduler)}, not one of torch.optim.lr_scheduler",
        )
        check(
            scheduler.optimizer is self._shadow,
            f"the scheduler {type(scheduler).__name__} of '{task}' is made for another optimiser; make it for the one "
            "that its function is given, as in scheduler=lambda optimizer: StepLR(optimizer, 5)",
        )
        self._shadow._opt_called = True  # type: ignore[attr-defined]  # or torch warns of steps in a wrong order
        return scheduler

    def _step(self, seen: Sequence[float]) -> None:
        name = type(self._scheduler).__name__
        try:
            if self.watches:
                self._scheduler.step(seen[self._done])
            else:
                self._scheduler.step()
        except Exception as error:
            which = f"the scheduler {name} of '{self._recipe.task}'"
            raise UserError(f"{which} failed at its step {self._done + 1}: {_first_line(error)}") from error
        self._done += 1
        check(
            self._others() == self._fixed,
            f"the scheduler {name} of '{self._recipe.task}' changes other options than learning rate and momentum, "
            "which workers do not share",
        )

    def _others(self) -> list[dict[str, Any]]:
        """Return the options that no scheduler may change."""
        return [
            {
                key: group["betas"][1:] if key == "betas" else value
                for key, value in group.items()
                if key not in CHANGING and isinstance(value, int | float | str | tuple | None)
            }
            for group in self._shadow.param_groups
        ]


def momentum_of(group: dict[str, Any]) -> float:
    """Return what OneCycleLR and CyclicLR change in a group besides the rate."""
    if "betas" in group:
        return float(group["betas"][0])
    return float(group.get("momentum", 0.0))


def set_momentum(group: dict[str, Any], value: float) -> None:
    """Set what `momentum_of` returns."""
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    elif "momentum" in group:
        group["momentum"] = value


def numbers_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the numbers of each group of an optimiser whose groups all train."""
    return tuple(n for group in optimizer.param_groups for n in (float(group["lr"]), momentum_of(group), 1.0))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
