"""Steps until a task reaches an accuracy: found by training in this process, or told by the noise of its gradient.

With an exact strategy n workers have the weights of one, so one worker is trained on the global batch. With one that
averages weights, all n replicas are.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import psutil
from scipy import stats

from manyhands.advice.noise_scale import LEVEL, CriticalBatch
from manyhands.comm.self_ import SelfComm
from manyhands.config import RunConfig
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.record.advice import TargetTraining
from manyhands.record.simulation import Estimate
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.sync.base import make as make_sync
from manyhands.tasks import Task
from manyhands.tasks.setup import device_of, loss_of
from manyhands.training.evaluate import evaluate
from manyhands.virtual.courses import Course, OneWorker, course_of

FIRST = 1 / 20
"""Epochs between two tests at the beginning."""
GROWTH = 0.04
"""Of the steps made, those to the next test: so much too late an accuracy may be seen."""
ONE_SEED = 0.2
"""Half of a 90 % interval, as a share, where a single training tells nothing of how seeds differ; a guess, and a
cautious one: of the built-in tasks they differ by less."""
SEEDS = 3
"""Trainings of each kind, where there is time."""


@dataclass(frozen=True)
class Recipe:
    """What decides how many steps it takes, besides the task and the seed."""

    sync: str
    """`allreduce` for every exact one."""
    workers: int
    """1 for an exact strategy."""
    batch_size: int
    lr: float
    warmup: float
    """Epochs."""

    def options(self, seed: int, steps: int) -> dict[str, Any]:
        """Return what such a run is given."""
        return {
            "engine": "sim",
            "workers": self.workers,
            "sync": self.sync,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "warmup": self.warmup,
            "lr_decay": "none",
            "steps": steps,
            "seed": seed,
            "blas_threads": 1,
        }


@dataclass(frozen=True)
class TrainingPulse:
    """How far a training is."""

    recipe: Recipe
    seed: int
    epoch: float
    accuracy: float


@final
class Trainer:
    """Trains a task until it reaches an accuracy."""

    def __init__(self, name: str, task: Task, target: float, observe: Callable[[TrainingPulse], None]) -> None:
        self.name, self.task, self._target, self._observe = name, task, target, observe
        self.rows_meet = False
        """Whether the answer of n workers may differ from one's, since the network mixes the rows of a batch."""

    def train(self, recipe: Recipe, seed: int, most_steps: int, until_s: float = math.inf) -> TargetTraining:
        """Train until the accuracy is there, so many steps are made, or the clock shows so much."""
        config = resolve(self.name, recipe.options(seed, most_steps), self.task)
        data = preflight(config, self.task).data.to(device_of(config, 0))
        course, loss = self._course(config, data), loss_of(self.task)

        def test() -> float:
            return evaluate(course.settled(), data.test, loss, SelfComm(), config.top)[1]

        def tell(epoch: float, accuracy: float) -> bool:
            self._observe(TrainingPulse(recipe, seed, epoch, accuracy))
            return time.perf_counter() < until_s

        with closing(course), process_settings(config, 1, facts.cores()):
            made, reached, best = _follow(course, self._target, test, tell)
        return TargetTraining(
            sync=recipe.sync,
            workers=recipe.workers,
            batch_size=recipe.batch_size,
            lr=recipe.lr,
            warmup=recipe.warmup,
            seed=seed,
            steps=made if reached else None,
            made=made,
            epochs=made / course.plan.steps_per_epoch,
            accuracy=best,
        )

    def can_follow(self, recipe: Recipe) -> bool:
        """Tell whether so many workers of a strategy can be trained for their answer alone."""
        config = resolve(self.name, recipe.options(0, 1), self.task)
        strategy, device = make_sync(recipe.sync), device_of(config, 0)
        course = course_of(strategy, self.task, config, preflight(config, self.task).data, device)
        if course is not None:
            course.close()
        return course is not None or strategy.exact

    def _course(self, config: RunConfig, data: Any) -> Course:
        strategy, device = make_sync(config.sync), device_of(config, 0)
        found = course_of(strategy, self.task, config, data, device)
        if found is None and strategy.exact:
            self.rows_meet = True
            return OneWorker(self.task, config, data, device)
        assert found is not None, "what cannot be followed was left out"
        return found


def _follow(
    course: Course, target: float, test: Callable[[], float], goes_on: Callable[[float, float], bool]
) -> tuple[int, bool, float]:
    """Make steps and test now and then; return the steps made, whether the accuracy is there, and the best seen."""
    plan, step, best = course.plan, 0, 0.0
    while step < plan.steps:
        for part in course.parts(step, min(plan.steps, _next_test(step, plan.steps_per_epoch))):
            losses, step = course.run(part), part.stop
            if not all(map(math.isfinite, losses)):
                return step, False, best
        accuracy = test()
        best = max(best, accuracy)
        if accuracy >= target or not goes_on(step / plan.steps_per_epoch, accuracy):
            return step, accuracy >= target, best
    return step, False, best


def _next_test(step: int, steps_per_epoch: int) -> int:
    return step + max(1, math.ceil(max(FIRST * steps_per_epoch, GROWTH * step)))


@final
@dataclass(frozen=True)
class KnownSteps:
    """The steps that trainings with one recipe took."""

    steps: tuple[int, ...]
    failed: bool = False
    """Whether one did not get there."""

    @property
    def mean(self) -> float:
        """On average over the seeds."""
        return sum(self.steps) / len(self.steps)

    @property
    def spread(self) -> float:
        """Half of a 90 % interval for another seed's, as a share; at least what lies between two tests."""
        count = len(self.steps)
        if count < 2:
            return ONE_SEED
        wide = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * math.sqrt(1 + 1 / count)
        return max(GROWTH, wide * float(np.std(self.steps, ddof=1)) / self.mean)


def known_from(trainings: Sequence[TargetTraining]) -> KnownSteps:
    """Gather trainings with one recipe."""
    return KnownSteps(
        tuple(each.steps for each in trainings if each.steps is not None), any(each.steps is None for each in trainings)
    )


@final
@dataclass(frozen=True)
class StepsLaw:
    """Steps to the accuracy at any batch, from those at one: S = S_min (1 + B_crit / B) (McCandlish et al. 2018).

    The law supposes the learning rate that goes with a batch, which is inversely proportional to the steps.
    """

    batch_size: int
    """At which the steps are known."""
    known: KnownSteps
    critical: CriticalBatch
    root: bool
    """Whether the learning rate only grows with the square root, as for optimisers that scale the gradient."""
    lr: float
    """At the known batch."""

    def ratio(self, batch_size: int, critical: float | None = None) -> float:
        """Return how many times the known steps a batch takes."""
        now = critical if critical is not None else self._middle
        if math.isinf(now):
            return self.batch_size / batch_size
        return (1 + now / batch_size) / (1 + now / self.batch_size)

    def steps(self, batch_size: int) -> Estimate:
        """Return the steps at a batch."""
        value = self.known.mean * self.ratio(batch_size)
        ends = [self.critical.low, math.inf if self.critical.high is None else self.critical.high]
        ratios = [self.ratio(batch_size, max(end, 1e-9)) / self.ratio(batch_size) for end in ends]
        below = math.hypot(self.known.spread, max(0.0, 1 - min(ratios)))
        above = math.hypot(self.known.spread, max(0.0, max(ratios) - 1))
        return Estimate(value=value, low=max(1.0, value * (1 - below)), high=value * (1 + above))

    def lr_at(self, batch_size: int) -> float:
        """Return the learning rate that goes with a batch, with figures that one can type."""
        factor = 1 / self.ratio(batch_size)
        return float(f"{self.lr * (math.sqrt(factor) if self.root else factor):.3g}")

    @property
    def _middle(self) -> float:
        return max(1e-9, self.critical.rows if self.critical.rows is not None else self.critical.low)


def spread_like(known: KnownSteps, other: KnownSteps) -> Estimate:
    """Return the steps of one recipe; where it was trained once only, it varies as another does."""
    spread = known.spread if len(known.steps) > 1 else max(known.spread, other.spread)
    return Estimate(value=known.mean, low=max(1.0, known.mean * (1 - spread)), high=known.mean * (1 + spread))


def most_replicas(weight_bytes: int, task: Task) -> int:
    """Return for how many replicas, each with weights, gradients and the optimiser's state, there is memory."""
    each = {"sgd": 2, "momentum": 3}.get(str(task.optimizer), 4) * weight_bytes
    return int(psutil.virtual_memory().available) // each


def with_batch(recipe: Recipe, sync: str, workers: int) -> Recipe:
    """Return the recipe that decides the steps of a strategy: that of one worker, where it is exact."""
    return recipe if make_sync(sync).exact else replace(recipe, sync=sync, workers=workers)
