"""Steps until a task reaches an accuracy: counted by training in this process, or predicted from the gradient noise.

With an exact strategy n workers have the weights of one, so one worker is trained on the global batch. With a strategy
that averages weights, all n replicas are trained.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy import stats

from manyhands.advice.noise_scale import LEVEL, GradientNoise
from manyhands.comm.self_ import SelfComm
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.errors import check
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.record.advice import TargetTraining
from manyhands.record.simulation import Estimate
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.sync.base import make as make_sync
from manyhands.tasks import Task
from manyhands.tasks.setup import device_of
from manyhands.training.evaluate import evaluate, scoring_of
from manyhands.training.monitor import check_unwatched
from manyhands.virtual.courses import Course, OneWorker, course_of

FIRST_TEST = 1 / 20
"""Epochs between two evaluations at the beginning."""
GROWTH = 0.04
"""Steps to the next evaluation as a share of the steps made: the relative error of the steps that are counted."""
ONE_SEED = 0.2
"""Relative half-width of a 90 % interval where only one seed was trained: a cautious guess, since seeds of the built-in
tasks differ by less."""
SEEDS = 3
"""Trainings with each recipe, if the budget allows."""


@dataclass(frozen=True)
class Recipe:
    """Settings that decide how many steps a task needs, besides the seed."""

    sync: str
    """`allreduce` for every exact strategy."""
    workers: int
    """1 for an exact strategy."""
    batch_size: int
    lr: float
    warmup: float
    """Epochs."""

    def options(self, seed: int, steps: int) -> dict[str, Any]:
        """Return the options of a run of `steps` steps with this recipe."""
        options = {"engine": "sim", "lr_decay": "none", "steps": steps, "seed": seed, "blas_threads": 1}
        return {**vars(self), **options}


@final
class Trainer:
    """Trains a task until it reaches the accuracy `target`.

    `observe` is called with the recipe, the seed, the epoch and the accuracy after each evaluation.
    """

    def __init__(
        self, name: str, task: Task, target: float, observe: Callable[[Recipe, int, float, float], None]
    ) -> None:
        self.name, self.task, self._target, self._observe = name, task, target, observe
        self.rows_meet = False
        """Whether the answer of n workers may differ from one's, since the network mixes the rows of a batch."""

    def train(self, recipe: Recipe, seed: int, most_steps: int, until_s: float = math.inf) -> TargetTraining:
        """Train to the accuracy, to `most_steps` steps, or until `time.perf_counter()` shows `until_s`."""
        config = resolve(self.name, recipe.options(seed, most_steps), self.task)
        check(config.ema == 0, f"advise follows the weights themselves, but '{self.name}' averages them; set ema to 0")
        ready = preflight(config, self.task)
        check_unwatched(ready.replica, "advise tests the weights without telling it the figures")
        data = ready.data.to(device_of(config, 0))
        course = self._course(config, data)
        assert course is not None, "a strategy that cannot be followed was left out"

        def test() -> float:
            module = course.settled()
            accuracy = evaluate(module, data.test, scoring_of(self.task, config, data, module), SelfComm()).accuracy
            check(accuracy is not None, f"'{self.name}' has no accuracy to reach, since its targets are no classes")
            return accuracy or 0.0

        def goes_on(epoch: float, accuracy: float) -> bool:
            self._observe(recipe, seed, epoch, accuracy)
            return time.perf_counter() < until_s

        with closing(course), process_settings(config, 1, facts.cores()):
            steps, reached, best = _follow(course, self._target, test, goes_on)
        return TargetTraining(
            **vars(recipe),
            seed=seed,
            steps=steps if reached else None,
            made=steps,
            epochs=steps / course.plan.steps_per_epoch,
            accuracy=best,
        )

    def can_follow(self, recipe: Recipe) -> bool:
        """Tell whether the weights of the recipe's workers can be computed in this process."""
        config = resolve(self.name, recipe.options(0, 1), self.task)
        course = self._course(config, preflight(config, self.task).data)
        if course is not None:
            course.close()
        return course is not None

    def _course(self, config: RunConfig, data: Dataset) -> Course | None:
        strategy, device = make_sync(config.sync), device_of(config, 0)
        course = course_of(strategy, self.task, config, data, device)
        if course is None and strategy.exact:
            self.rows_meet = True
            return OneWorker(self.task, config, data, device)
        return course


def _follow(
    course: Course, target: float, test: Callable[[], float], goes_on: Callable[[float, float], bool]
) -> tuple[int, bool, float]:
    """Train with an evaluation now and then; return the steps made, whether `target` was reached, and the best
    accuracy."""
    plan, step, best = course.plan, 0, 0.0
    while step < plan.steps:
        next_test = step + max(1, math.ceil(max(FIRST_TEST * plan.steps_per_epoch, GROWTH * step)))
        for part in course.parts(step, min(plan.steps, next_test)):
            losses, step = course.run(part), part.stop
            if not all(map(math.isfinite, losses)):
                return step, False, best
        accuracy = test()
        best = max(best, accuracy)
        if accuracy >= target or not goes_on(step / plan.steps_per_epoch, accuracy):
            return step, accuracy >= target, best
    return step, False, best


@final
@dataclass(frozen=True)
class KnownSteps:
    """Steps to the accuracy with one recipe, of each seed that reached it."""

    steps: tuple[int, ...]
    failed: bool = False
    """Whether another seed did not reach it."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return sum(self.steps) / len(self.steps)

    @property
    def spread(self) -> float:
        """Relative half-width of a 90 % interval for another seed; at least the distance between two evaluations."""
        count = len(self.steps)
        if count < 2:
            return ONE_SEED
        wide = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * math.sqrt(1 + 1 / count)
        return max(GROWTH, wide * float(np.std(self.steps, ddof=1)) / self.mean)

    def estimate(self, similar: "KnownSteps") -> Estimate:
        """Return the mean with its interval; a single seed is taken to vary at least as those of `similar` do."""
        spread = self.spread if len(self.steps) > 1 else max(self.spread, similar.spread)
        return Estimate(value=self.mean, low=max(1.0, self.mean * (1 - spread)), high=self.mean * (1 + spread))


def known_from(trainings: Sequence[TargetTraining]) -> KnownSteps:
    """Return the steps of trainings with one recipe."""
    steps = [training.steps for training in trainings]
    return KnownSteps(tuple(count for count in steps if count is not None), None in steps)


@final
@dataclass(frozen=True)
class StepsLaw:
    """Steps to the accuracy at any batch, from those at one: S = S_min (1 + B_crit / B) (McCandlish et al. 2018).

    The law supposes the learning rate that goes with a batch, which is inversely proportional to the steps.
    """

    batch_size: int
    """At which the steps are known."""
    known: KnownSteps
    noise: GradientNoise
    root: bool
    """Whether the learning rate only grows with the square root, as for optimisers that scale the gradient."""
    lr: float
    """At the known batch."""

    def _ratio(self, batch_size: int, critical: float) -> float:
        """Return the steps at `batch_size` as a multiple of the known ones, if `critical` is the critical batch."""
        if math.isinf(critical):
            return self.batch_size / batch_size
        critical = max(1e-9, critical)
        return (1 + critical / batch_size) / (1 + critical / self.batch_size)

    def steps(self, batch_size: int) -> Estimate:
        """Return the steps at a batch, with an interval for the seed and for the critical batch."""
        ratio = self._ratio(batch_size, self.noise.critical_batch)
        value = self.known.mean * ratio
        ends = [self.noise.low, math.inf if self.noise.high is None else self.noise.high]
        ratios = [self._ratio(batch_size, end) / ratio for end in ends]
        below = math.hypot(self.known.spread, max(0.0, 1 - min(ratios)))
        above = math.hypot(self.known.spread, max(0.0, max(ratios) - 1))
        return Estimate(value=value, low=max(1.0, value * (1 - below)), high=value * (1 + above))

    def lr_at(self, batch_size: int) -> float:
        """Return the learning rate that goes with a batch, rounded to three figures."""
        factor = 1 / self._ratio(batch_size, self.noise.critical_batch)
        return float(f"{self.lr * (math.sqrt(factor) if self.root else factor):.3g}")


def most_replicas(weight_bytes: int, task: Task) -> int:
    """Return how many replicas, each with weights, gradients and optimiser state, fit into the available memory."""
    replica_bytes = {"sgd": 2, "momentum": 3}.get(str(task.optimizer), 4) * weight_bytes
    return facts.available_bytes() // replica_bytes
