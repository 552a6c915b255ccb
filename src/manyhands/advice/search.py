"""Which engine, strategy, number of workers and batch reach the accuracy soonest.

A step of every combination is predicted; `Book` knows or predicts how many steps it needs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from manyhands import launch
from manyhands.advice.request import CheckedAdvice
from manyhands.advice.train import KnownSteps, Recipe, StepsLaw, known_from
from manyhands.model.cluster import Cluster
from manyhands.record.advice import TargetTraining
from manyhands.record.simulation import Estimate
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.request import WorkerCount
from manyhands.simulation.rows import with_failures
from manyhands.simulation.solo import NoClosedForm
from manyhands.simulation.spread import estimate
from manyhands.sync import Sync
from manyhands.sync.base import make as make_sync

SMALLEST = 0.25
"""Smallest batch to consider, as a share of the critical batch, or of the task's own where that is smaller."""
SERIAL = "serial"
"""The engine of one worker."""
BEST = 3
"""Ways that are advised."""
WARM_UP = 0.1
"""Share of the steps over which a learning rate above the task's own grows."""
GIVE_UP = 2.0
"""Steps after which a training is given up, as a multiple of those that the noise scale predicts."""

Candidate = tuple[str, Predicted]
"""An engine, and the predicted step of a strategy, number of workers and batch."""


def batches(usual: int, critical: float, samples: int) -> list[int]:
    """Return the batches to consider: the task's `usual` one, halved and doubled, up to the `critical` batch."""
    limit = max(1.0, critical)
    least, most = max(1.0, SMALLEST * min(usual, limit)), min(samples, max(usual, limit))
    sizes = {usual >> k for k in range(usual.bit_length())} | {usual << k for k in range(samples.bit_length())}
    return sorted(size for size in sizes if size == usual or least <= size <= most)


def candidates(checked: CheckedAdvice, sizes: Sequence[int], observe: Callable[[int, int], None]) -> list[Candidate]:
    """Predict a step of every combination with the batches `sizes`; one worker needs neither engine nor strategy.

    Inexact strategies are considered with at most `checked.most_replicas` workers. `observe` is called with the number
    of pairs of engine and strategy that are done, and that of all.
    """
    first = checked.predictor
    alone = [WorkerCount(1, 1, size, first.network.samples) for size in sizes]
    combinations: list[Candidate] = [(SERIAL, step) for step in _predict(first, make_sync("allreduce"), alone)]
    strategies = [make_sync(spec) for spec in checked.syncs]
    pairs = [
        (engine, strategy)
        for engine in checked.predictors
        for strategy in strategies
        if strategy.requires <= launch.make(engine).features
    ]
    for done, (engine, strategy) in enumerate(pairs):
        observe(done, len(pairs))
        predictor = checked.predictors[engine]
        counts = [n for n in checked.counts if strategy.exact or n <= checked.most_replicas]
        points = list(_points(predictor, strategy, counts, sizes))
        combinations += [(engine, step) for step in _predict(predictor, strategy, points)]
    return combinations


def _points(predictor: Predictor, strategy: Sync, counts: Sequence[int], sizes: Sequence[int]) -> Iterator[WorkerCount]:
    servers, cluster = strategy.num_servers(), predictor.cluster
    most = cluster.max_ranks if cluster else max(counts, default=0)
    for workers in counts:
        nodes = int(cluster.nodes_of(workers + servers)) if cluster else 1
        if workers > 1 and workers + servers <= most:
            for size in sizes:
                if workers <= size:
                    yield WorkerCount(nodes, workers, size, predictor.network.samples)


def _predict(predictor: Predictor, strategy: Sync, points: Sequence[WorkerCount]) -> list[Predicted]:
    """Predict by closed form; nothing of a strategy that has none."""
    try:
        return list(predictor.formula(strategy, points)) if points else []
    except NoClosedForm:
        return []


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
            time_s, _ = with_failures(product(steps, step_s), ranks, cluster)
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
