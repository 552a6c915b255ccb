"""Which way to an accuracy is the soonest, by what is known of steps and of their times."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

from manyhands.advice.search import Candidate, cost_of, time_to
from manyhands.advice.train import KnownSteps, Recipe, StepsLaw, known_from, spread_like, with_batch
from manyhands.model.cluster import Cluster
from manyhands.record.advice import TargetTraining
from manyhands.record.simulation import Estimate
from manyhands.sync.base import make as make_sync

BEST = 3
"""Ways that are named."""
WARM_UP = 0.1
"""Of the steps, those over which a learning rate above the task's own grows."""
GIVE_UP = 2.0
"""How many times the steps that the noise scale tells a training may take."""


@final
@dataclass
class Book:
    """What is known of the steps: trainings, and the law that tells the rest."""

    law: StepsLaw
    samples: int
    trainings: list[TargetTraining] = field(default_factory=list)

    def recipe(self, sync: str, workers: int, batch_size: int) -> Recipe:
        """Return with what learning rate and warm-up to train, and what else decides the steps."""
        law, lr, warmup = self.law, self.law.lr, 0.0
        if batch_size != law.batch_size:
            lr = law.lr_at(batch_size)
            epochs = law.steps(batch_size).value / math.ceil(self.samples / batch_size)
            warmup = float(f"{WARM_UP * epochs:.2g}") if lr > law.lr else 0.0
        return with_batch(Recipe("allreduce", 1, batch_size, lr, warmup), sync, workers)

    def known(self, recipe: Recipe) -> KnownSteps | None:
        """Return what trainings with a recipe told, if there were some."""
        parts = ("sync", "workers", "batch_size")
        found = [each for each in self.trainings if all(getattr(each, p) == getattr(recipe, p) for p in parts)]
        return known_from(found) if found else None

    def steps(self, recipe: Recipe) -> Estimate | None:
        """Return the steps that it takes; None where it does not get there.

        One worker with the task's own settings did get there at least once; where a seed did not, its record says so.
        """
        known = self.known(recipe)
        if known is not None:
            gets_there = not known.failed or self._is_own(recipe)
            return spread_like(known, self.law.known) if gets_there else None
        told = self.law.steps(recipe.batch_size)
        slower = 1 + WARM_UP / 2 if recipe.warmup else 1.0  # half the learning rate on average
        return told.scaled(slower)

    def _is_own(self, recipe: Recipe) -> bool:
        return recipe == self.recipe("allreduce", 1, self.law.batch_size)

    def most_steps(self, recipe: Recipe) -> int:
        """Return after how many steps a training is given up."""
        return math.ceil(GIVE_UP * max(1.0, self.law.steps(recipe.batch_size).value))

    def sure_steps(self, recipe: Recipe) -> int:
        """Return the steps that a run should be given: what the longest training took, or the law's upper end."""
        known = self.known(recipe)
        return max(known.steps) if known is not None else math.ceil(self.law.steps(recipe.batch_size).high)


@final
@dataclass(frozen=True)
class Way:
    """A candidate, and what it takes to get there."""

    candidate: Candidate
    recipe: Recipe
    trained: bool
    steps: Estimate
    time_s: Estimate
    cost: Estimate | None

    @property
    def order(self) -> tuple[float, float, int, str, int, str]:
        """Soonest first; then what is cheaper, what needs fewer workers, and at last the names decide."""
        one = self.candidate
        price = self.cost.value if self.cost else 0.0
        return self.time_s.value, price, one.workers, one.sync, one.batch_size, one.engine


def ways(candidates: Iterable[Candidate], book: Book, cluster: Cluster | None) -> list[Way]:
    """Return all candidates that get there, the soonest first."""
    found = []
    for each in candidates:
        recipe = book.recipe(each.sync, each.workers, each.batch_size)
        steps = book.steps(recipe)
        if steps is not None:
            time_s = time_to(each, steps, cluster)
            trained = book.known(recipe) is not None
            found.append(Way(each, recipe, trained, steps, time_s, cost_of(each, time_s, cluster)))
    return sorted(found, key=lambda way: way.order)


def affordable(found: Iterable[Way], max_cost: float | None) -> list[Way]:
    """Leave out what costs too much."""
    return [way for way in found if max_cost is None or (way.cost is not None and way.cost.value <= max_cost)]


def sure(found: Iterable[Way]) -> list[Way]:
    """Leave out inexact strategies that nobody trained: no theory tells what they lose."""
    return [way for way in found if way.trained or make_sync(way.candidate.sync).exact]


def pick(found: Sequence[Way], count: int = BEST) -> list[Way]:
    """Return the first few; of each engine and number of workers only one, or all would be nearly the same."""
    chosen: dict[tuple[str, int], Way] = {}
    for way in found:
        chosen.setdefault((way.candidate.engine, way.candidate.workers), way)
    return list(chosen.values())[:count]


def confirm(
    find: Callable[[], list[Way]],
    book: Book,
    train: Callable[[Recipe, int], list[TargetTraining]],
    in_time: Callable[[], bool],
) -> None:
    """Train what seems best, until all that still does was trained; what it told may make others seem better."""
    while in_time():
        todo = next((way for way in pick(find()) if not way.trained), None)
        if todo is None:
            return
        book.trainings += train(todo.recipe, book.most_steps(todo.recipe))
