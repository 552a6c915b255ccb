"""Advise how to reach an accuracy soonest: which engine, strategy, workers and batch, what it costs, and why."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from manyhands.advice.noise_scale import CriticalBatch, critical_batch, noise_scale
from manyhands.advice.rank import Book, Way, affordable, confirm, ways
from manyhands.advice.record import make_record
from manyhands.advice.request import (
    AdviceRequest,
    CheckedAdvice,
    check_cost,
    choose_counts,
    choose_syncs,
    make_predictors,
)
from manyhands.advice.search import batches, candidates
from manyhands.advice.train import SEEDS, Recipe, StepsLaw, Trainer, TrainingPulse, known_from, most_replicas
from manyhands.errors import UserError, check
from manyhands.launch.environment import outer_world
from manyhands.machine import facts
from manyhands.record import Pulse
from manyhands.record.advice import AdviceDir, AdviceRecord, TargetTraining
from manyhands.record.calibration import differences
from manyhands.record.store import stem_of
from manyhands.record.texts import count, figure
from manyhands.request import absolute
from manyhands.simulation.predict import Predictor
from manyhands.simulation.request import check_batch, find_cluster
from manyhands.sync.base import make as make_sync
from manyhands.tasks.load import check_not_importing

EPOCHS = 5
"""How many times a task's own epochs it may take to get there."""
POINTS, SAMPLES = 7, 4096
"""Points of the training at which the noise is measured, of which the middle one counts; and samples at each."""


@dataclass(frozen=True)
class AdvicePulse:
    """What is being done."""

    doing: str
    accuracy: float | None = None
    """Of a training, the last that was seen."""


Observer = Callable[[AdvicePulse], None]


def advise(
    task: str,
    target_accuracy: float,
    *,
    observe: Observer = lambda pulse: None,
    say: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> AdviceRecord:
    """Find the soonest ways to an accuracy, on this host or a cluster: predicted times, costs, reasons and commands.

    One worker is really trained until it is there, which tells how many steps that takes; the noise of its gradient
    tells what other batches take, and what seems best is trained too while the budget lasts, which ends a training that
    is under way. To measure the noise and to predict steps takes time besides.

    >>> advise("mlp", 0.9, cluster="ethernet-10g")  # doctest: +SKIP

    task: What to train.
    target_accuracy: Share of the test samples to get right.
    observe: Called with an `AdvicePulse` that says what is being done.
    say: Called with sentences that a user should read.
    options: The other fields of an `AdviceRequest`: cluster, max_cost, max_workers, engines, syncs, calibration, …
    """
    begun_s = time.perf_counter()
    check_not_importing()
    check(outer_world() is None, "advise trains by itself; run it without mpiexec, srun or torchrun")
    request = AdviceRequest(task=task, target_accuracy=target_accuracy, **options)
    adviser = _Adviser(_prepare(request, say, begun_s), observe)
    if request.out is None:
        return adviser.advise("")
    with AdviceDir.kept_if_used(request.out, stem_of(task)) as folder:
        record = adviser.advise(folder.path.name)
        folder.write(record)
    return record


def _prepare(request: AdviceRequest, say: Callable[[str], None], begun_s: float) -> CheckedAdvice:
    """Check a request, and find the predictors, strategies and numbers of workers that it means."""
    place, called = find_cluster(request.cluster)
    check_cost(request.max_cost, place)
    specs, (counts, limit) = choose_syncs(request.syncs), choose_counts(place, request.max_workers)
    task, named = request.task, bool(request.syncs)
    predictors = make_predictors(task, request.engines, request.calibration, place)
    first = next(iter(predictors.values()))
    for sentence in differences(first.calibration, facts.hardware(), facts.versions()):
        say(sentence)
    specs = _followed(specs, task, first, say, named=named)
    fit = most_replicas(first.calibration.tasks[absolute(task)].weight_bytes, first.network.task)
    _check_memory(specs, counts, fit, say, named=named)
    return CheckedAdvice(
        task=task,
        target=request.target_accuracy,
        predictors=predictors,
        syncs=specs,
        counts=counts,
        limit=limit,
        batch_size=check_batch(None, None, first.network.config.batch_size, first.network.samples),
        most_replicas=fit,
        max_cost=request.max_cost,
        max_epochs=request.max_epochs or EPOCHS * first.network.config.epochs,
        cluster_name=called,
        begun_s=begun_s,
        until_s=begun_s + request.budget_s,
        command=request.command,
    )


def _followed(
    specs: list[str], task: str, predictor: Predictor, say: Callable[[str], None], *, named: bool
) -> list[str]:
    """Leave out strategies whose answer no short training tells for this network; refuse them where they were named."""
    network = predictor.network
    trainer = Trainer(task, network.task, 1.0, lambda pulse: None)
    found = []
    for spec in specs:
        recipe = Recipe(
            spec, 2, check_batch(None, None, network.config.batch_size, network.samples), network.config.lr, 0
        )
        if trainer.can_follow(recipe):
            found.append(spec)
            continue
        check(
            not named,
            f"how many steps '{spec}' takes is told by no short training of '{task}'; leave it out of --syncs",
        )
        say(f"{spec} is left out: replicas of this network cannot be trained side by side to count its steps")
    return found


def _check_memory(
    specs: Sequence[str], counts: Sequence[int], fit: int, say: Callable[[str], None], *, named: bool
) -> None:
    """Say of inexact strategies, whose workers are trained as replicas, how many find room; refuse them if none do."""
    for spec in specs:
        if make_sync(spec).exact or max(counts) <= fit:
            continue
        check(fit > 1 or not named, f"there is no memory to train 2 replicas with '{spec}'; leave it out of --syncs")
        say(
            f"{spec} is left out with more than {count(max(1, fit), 'worker')}: to count its steps as many "
            f"replicas must be trained here, and the free memory has room for no more"
        )


@final
class _Adviser:
    """Learns how a task trains, and finds what is best."""

    def __init__(self, asked: CheckedAdvice, observe: Observer) -> None:
        self._asked, self._observe = asked, observe
        self._network = asked.predictor.network
        self._trainer = Trainer(asked.task, self._network.task, asked.target, self._tell)

    def advise(self, folder: str) -> AdviceRecord:
        """Learn, look at all there is, try what seems best, and say it."""
        asked = self._asked
        book = self._learn()
        sizes = batches(asked.batch_size, book.law.critical, self._network.samples)

        def told(done: int, total: int) -> None:
            self._observe(AdvicePulse(f"predicting steps, {done} of {total}"))

        found = candidates(asked.predictors, asked.syncs, asked.counts, sizes, told, asked.most_replicas)

        def find() -> list[Way]:
            return affordable(ways(found, book, asked.cluster), asked.max_cost)

        status: Literal["complete", "interrupted"] = "complete"
        try:
            confirm(find, book, self._train_all, lambda: asked.in_time)
        except KeyboardInterrupt:
            status = "interrupted"
        return make_record(asked, book, found, status, folder, rows_meet=self._trainer.rows_meet)

    def _learn(self) -> Book:
        """Train one worker with the task's own settings, and measure the noise of its gradient on the way."""
        asked, config = self._asked, self._network.config
        recipe = Recipe("allreduce", 1, asked.batch_size, config.lr, 0.0)
        most = math.ceil(asked.max_epochs * math.ceil(self._network.samples / asked.batch_size))
        first = self._trainer.train(recipe, 0, most, asked.until_s)
        _check_reached(first, asked)
        noise = self._measure_noise(recipe, first.made)
        trainings = [first]
        while asked.in_time and len(trainings) < SEEDS and trainings[-1].steps is not None:
            again = self._trainer.train(recipe, len(trainings), most, asked.until_s)
            if again.steps is None and not asked.in_time and again.made < most:
                break  # the budget has ended it, which says nothing about the seed
            trainings.append(again)
        root = self._network.task.optimizer not in ("sgd", "momentum")
        law = StepsLaw(asked.batch_size, known_from(trainings), noise, root, config.lr)
        return Book(law, self._network.samples, trainings)

    def _measure_noise(self, recipe: Recipe, steps: int) -> CriticalBatch:
        def tell(pulse: Pulse) -> None:
            self._observe(AdvicePulse(f"measuring the gradient's noise, step {pulse.step:,} of {pulse.steps:,}"))

        options = {**recipe.options(0, steps), "observe": tell}
        return critical_batch(noise_scale(self._asked.task, points=POINTS, samples=SAMPLES, **options))

    def _train_all(self, recipe: Recipe, most_steps: int) -> list[TargetTraining]:
        """Train with one seed after the other while there is time, and no more where one does not get there."""
        found: list[TargetTraining] = []
        while len(found) < SEEDS and self._asked.in_time and (not found or found[-1].steps is not None):
            training = self._trainer.train(recipe, len(found), most_steps, self._asked.until_s)
            if training.steps is None and not self._asked.in_time and training.made < most_steps:
                break  # the budget has ended it, which says nothing about the recipe
            found.append(training)
        return found

    def _tell(self, pulse: TrainingPulse) -> None:
        who = "one worker" if pulse.recipe.workers == 1 else f"{pulse.recipe.workers:,} workers ({pulse.recipe.sync})"
        doing = f"training {who}, batch {pulse.recipe.batch_size:,}, seed {pulse.seed}, epoch {pulse.epoch:.1f}"
        self._observe(AdvicePulse(doing, pulse.accuracy))


def _check_reached(first: TargetTraining, asked: CheckedAdvice) -> None:
    if first.steps is not None:
        return
    ended = "" if asked.in_time else ", which took the whole --budget"
    raise UserError(
        f"one worker with the task's own settings reached {100 * first.accuracy:.1f} % in {figure(first.epochs)} epochs"
        f"{ended}; no advice can be given for {100 * asked.target:g} %"
    )
