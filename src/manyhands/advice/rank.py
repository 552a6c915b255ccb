"""Which combination reaches the accuracy soonest, by the steps that it needs and the time that a step takes."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

from manyhands.advice.search import Candidate
from manyhands.advice.train import KnownSteps, Recipe, StepsLaw, known_from
from manyhands.model.cluster import Cluster
from manyhands.record.advice import TargetTraining
from manyhands.record.simulation import Estimate
from manyhands.simulation.predict import Predicted
from manyhands.simulation.rows import failures_in, with_failures
from manyhands.simulation.spread import estimate
from manyhands.sync.base import make as make_sync

BEST = 3
"""Ways that are advised."""
WARM_UP = 0.1
"""Share of the steps over which a learning rate above the task's own grows."""
GIVE_UP = 2.0
"""Steps after which a training is given up, as a multiple of those that the noise scale predicts."""


@final
@dataclass
class Book:
    """What is known of the steps: trainings, and the law that predicts those of other batches."""

    law: StepsLaw
    samples: int
    trainings: list[TargetTraining] = field(default_factory=list)

    def recipe(self, sync: str, workers: int, batch_size: int) -> Recipe:
        """Return the settings to train with; those of one worker, where the strategy is exact."""
        law, lr, warmup = self.law, self.law.lr, 0.0
        if batch_size != law.batch_size:
            lr = law.lr_at(batch_size)
            epochs = law.steps(batch_size).value / math.ceil(self.samples / batch_size)
            warmup = float(f"{WARM_UP * epochs:.2g}") if lr > law.lr else 0.0
        sync, workers = ("allreduce", 1) if make_sync(sync).exact else (sync, workers)
        return Recipe(sync, workers, batch_size, lr, warmup)

    def known(self, recipe: Recipe) -> KnownSteps | None:
        """Return the steps of all trainings with a recipe; None where there was none."""
        key = recipe.sync, recipe.workers, recipe.batch_size
        alike = [t for t in self.trainings if (t.sync, t.workers, t.batch_size) == key]
        return known_from(alike) if alike else None

    def steps(self, recipe: Recipe) -> Estimate | None:
        """Return the steps to the accuracy; None where a training did not reach it.

        One worker with the task's own settings did reach it at least once; where a seed did not, the record says so.
        """
        known = self.known(recipe)
        if known is not None:
            is_own = recipe == self.recipe("allreduce", 1, self.law.batch_size)
            return known.estimate(self.law.known) if is_own or not known.failed else None
        slower = 1 + WARM_UP / 2 if recipe.warmup else 1.0  # half the learning rate on average
        return self.law.steps(recipe.batch_size).scaled(slower)

    def most_steps(self, recipe: Recipe) -> int:
        """Return the steps after which a training is given up."""
        return math.ceil(GIVE_UP * max(1.0, self.law.steps(recipe.batch_size).value))

    def sure_steps(self, recipe: Recipe) -> int:
        """Return the steps that a run should be given: those of the longest training, or the law's upper bound."""
        known = self.known(recipe)
        return max(known.steps) if known is not None else math.ceil(self.law.steps(recipe.batch_size).high)


@final
@dataclass(frozen=True, eq=False)
class Way:
    """A candidate with the steps, the time and the cost to reach the accuracy."""

    engine: str
    predicted: Predicted
    step_s: Estimate
    recipe: Recipe
    trained: bool
    """Whether the steps come from trainings."""
    steps: Estimate
    time_s: Estimate
    cost: Estimate | None

    @property
    def order(self) -> tuple[float, float, int, str, int, str]:
        """Sort key: soonest first, then cheapest, then fewest workers, and at last the names decide."""
        price, point = self.cost.value if self.cost else 0.0, self.predicted.point
        return self.time_s.value, price, point.workers, self.predicted.sync, point.batch_size, self.engine


def ways(candidates: Iterable[Candidate], book: Book, cluster: Cluster | None) -> list[Way]:
    """Return the candidates that reach the accuracy, the soonest first."""
    reaching = []
    for engine, predicted in candidates:
        ranks = predicted.point.workers + predicted.servers
        recipe = book.recipe(predicted.sync, predicted.point.workers, predicted.point.batch_size)
        steps = book.steps(recipe)
        if steps is not None:
            step_s = estimate(predicted.split.step_s, predicted.drawn_s, predicted.share)
            sound_s = product(steps, step_s)
            time_s = with_failures(failures_in(sound_s.value, ranks, cluster), sound_s)
            cost = time_s.scaled(float(cluster.price(ranks, 1.0))) if cluster and cluster.price_per_hour else None
            trained = book.known(recipe) is not None
            reaching.append(Way(engine, predicted, step_s, recipe, trained, steps, time_s, cost))
    return sorted(reaching, key=lambda way: way.order)


def affordable(ranked: Iterable[Way], max_cost: float | None) -> list[Way]:
    """Leave out ways that cost more than `max_cost`, where that is given."""
    return [way for way in ranked if max_cost is None or (way.cost is not None and way.cost.value <= max_cost)]


def sure(ranked: Iterable[Way]) -> list[Way]:
    """Leave out inexact strategies that were not trained: no theory predicts the steps they lose."""
    return [way for way in ranked if way.trained or make_sync(way.predicted.sync).exact]


def pick(ranked: Iterable[Way]) -> list[Way]:
    """Return the soonest few; one of each engine and number of workers, or all would be nearly the same."""
    chosen: dict[tuple[str, int], Way] = {}
    for way in ranked:
        chosen.setdefault((way.engine, way.predicted.point.workers), way)
    return list(chosen.values())[:BEST]


def confirm(
    rank: Callable[[], list[Way]],
    book: Book,
    train: Callable[[Recipe, int], list[TargetTraining]],
    in_time: Callable[[], bool],
) -> None:
    """Train the best ways until all of them were trained; each training may change which are the best."""
    while in_time():
        untrained = next((way for way in pick(rank()) if not way.trained), None)
        if untrained is None:
            return
        book.trainings += train(untrained.recipe, book.most_steps(untrained.recipe))


def product(a: Estimate, b: Estimate) -> Estimate:
    """Multiply independent estimates: the squares of their relative errors add up."""
    value = a.value * b.value
    below = math.hypot(1 - a.low / a.value, 1 - b.low / b.value)
    above = math.hypot(a.high / a.value - 1, b.high / b.value - 1)
    return Estimate(value=value, low=max(0.0, value * (1 - below)), high=value * (1 + above))


def quotient(a: Estimate, b: Estimate) -> Estimate:
    """Divide independent estimates, whose relative errors add up as in a product."""
    low = max(b.low, b.value**2 / b.high)  # where an interval reaches to 0, by the factor of its upper end
    return product(a, Estimate(value=1 / b.value, low=1 / b.high, high=1 / low))
