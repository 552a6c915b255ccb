"""Groups of weights with options of their own, each one span of the flat tensors, and how a span may be cut."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, final

from torch import Tensor
from torch.optim import Optimizer

OptimizerFactory = Callable[[Any], Optimizer]
"""Makes the optimiser of a list of tensors; of a list of torch's parameter groups where the task has groups."""

ALIGNED = 64
"""Slices begin at multiples of this: vector kernels compute a tensor's last values one by one, with other rounding."""


class Weight(NamedTuple):
    """Where a weight lies in the flat tensors, and its shape."""

    start: int
    stop: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, flat: Tensor) -> Tensor:
        """Return the weight's view of a flat tensor."""
        return flat[self.start : self.stop].as_strided(self.shape, self.stride)


@final
@dataclass(frozen=True)
class NamedGroup:
    """A group by the names of its trainable weights."""

    names: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the optimiser, as in torch's own groups."""
    from_epoch: int = 0
    """The first epoch, from 0, in which the group is trained."""


@final
@dataclass(frozen=True)
class Group:
    """A group that has its place in the flat tensors."""

    start: int
    stop: int
    weights: tuple[Weight, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    from_epoch: int = 0


class Grain(NamedTuple):
    """What an optimiser looks at together."""

    flat: bool
    """It treats every element alike, so that all weights of a group may be one flat tensor."""
    apart: bool
    """It treats tensors apart from each other; where `flat`, also any spans of them."""


ELEMENTS, TENSORS = Grain(flat=True, apart=True), Grain(flat=False, apart=True)


@final
@dataclass(frozen=True)
class OptimizerRecipe:
    """How weights are updated: what a task and its settings say, before there is a network."""

    make: OptimizerFactory
    task: str = ""
    """Name of the task, for messages."""
    groups: tuple[NamedGroup, ...] = ()
    """Empty where the optimiser gets a list of tensors."""
    clip: float = 0.0
    """Largest norm of the whole gradient; 0 for any."""
    scheduler: Callable[[Optimizer], Any] | None = None
    """Makes a scheduler of torch for an optimiser."""
    every: Literal["step", "epoch"] = "step"
    """When the scheduler steps."""
    grain: Grain | None = ELEMENTS
    """None where a trial is to tell it."""

    @property
    def changes(self) -> bool:
        """Whether rates or groups change otherwise than by one common factor."""
        return self.scheduler is not None or any(group.from_epoch for group in self.groups)

    def optimizer(self, tensors: Sequence[list[Tensor]], groups: Sequence[Group | NamedGroup]) -> Optimizer:
        """Return an optimiser of some tensors of each group."""
        if not self.groups:
            return self.make([t for part in tensors for t in part])
        return self.make([{"params": part, **group.options} for part, group in zip(tensors, groups, strict=True)])

    def of_one(self, tensor: Tensor, group: Group) -> Optimizer:
        """Return an optimiser of a single tensor, with the options of its group."""
        return self.make([{"params": [tensor], **group.options}] if self.groups else [tensor])


def as_recipe(recipe: OptimizerRecipe | OptimizerFactory) -> OptimizerRecipe:
    """Return a recipe itself, or the one of an optimiser that treats every element alike."""
    return recipe if isinstance(recipe, OptimizerRecipe) else OptimizerRecipe(recipe)


def cut_aligned(length: int, parts: int) -> list[tuple[int, int]]:
    """Cut a flat tensor into nearly equal slices in which the optimiser computes the same bits as in the whole."""
    width = -(-length // (parts * ALIGNED)) * ALIGNED
    return [(min(i * width, length), min((i + 1) * width, length)) for i in range(parts)]


def cut(groups: Sequence[Group], length: int, grain: Grain, parts: int) -> list[tuple[int, int]]:
    """Cut the flat tensors into nearly equal slices, in which the optimiser computes the same bits as in the whole.

    Running statistics behind the groups can be cut anywhere.
    """
    if parts == 1 or not grain.apart:
        return [(0, length)] + [(length, length)] * (parts - 1)
    even, end = cut_aligned(length, parts), groups[-1].stop
    if grain.flat:
        starts = [start if start >= end else _aligned(start, groups) for start, _ in even]
    else:
        borders = [weight.start for group in groups for weight in group.weights] + [end]
        starts = [start if start >= end else _nearest(start, borders) for start, _ in even]
    return list(zip(starts, [*starts[1:], length], strict=True))


def _aligned(at: int, groups: Sequence[Group]) -> int:
    """Return the first place from `at` on where the tensor of its group may be cut."""
    group = next(group for group in groups if at < group.stop)
    return min(group.start + -(-(at - group.start) // ALIGNED) * ALIGNED, group.stop)


def _nearest(at: int, borders: Sequence[int]) -> int:
    return min(borders, key=lambda border: abs(border - at))
