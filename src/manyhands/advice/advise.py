"""Advise how to reach an accuracy soonest: which engine, strategy, workers and batch, what it costs, and why."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from manyhands.advice.noise_scale import median_noise, noise_scale
from manyhands.advice.prepare import prepare
from manyhands.advice.record import make_record
from manyhands.advice.request import AdviceRequest, CheckedAdvice
from manyhands.advice.search import Book, Way, affordable, batches, candidates, confirm, ways
from manyhands.advice.train import SEEDS, Recipe, StepsLaw, Trainer, known_from
from manyhands.errors import UserError, check
from manyhands.launch.environment import outer_world
from manyhands.record.advice import AdviceDir, AdviceRecord, TargetTraining
from manyhands.record.run import Pulse
from manyhands.record.store import stem_of
from manyhands.record.texts import figure
from manyhands.tasks.load import check_not_importing

EPOCHS = 5
"""Epochs that one worker may need, as a multiple of the task's own."""


@dataclass(frozen=True)
class AdvicePulse:
    """What is being done."""

    doing: str
    accuracy: float | None = None
    """Of the last evaluation, during a training."""


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

    One worker is trained until it reaches the accuracy, which gives the steps at the task's own batch; the noise of its
    gradient predicts those at other batches, and the best candidates are trained too while the budget lasts. The budget
    ends a training that is under way; the measurement of the noise and the predictions take time besides.

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
    adviser = _Adviser(prepare(request, say, begun_s), observe)
    if request.out is None:
        return adviser.advise("")
    with AdviceDir.kept_if_used(request.out, stem_of(task)) as folder:
        record = adviser.advise(folder.path.name)
        folder.write(record)
    return record


@final
class _Adviser:
    """Finds out how a task trains, and which way to the accuracy is the soonest."""

    def __init__(self, checked: CheckedAdvice, observe: Observer) -> None:
        self._checked, self._request, self._observe = checked, checked.request, observe
        self._network = checked.predictor.network
        target = self._request.target_accuracy
        self._trainer = Trainer(self._request.task, self._network.task, target, self._show_training)

    def advise(self, folder: str) -> AdviceRecord:
        """Train one worker, predict every candidate, train the best of them, and return the record."""
        checked, book = self._checked, self._learn()
        sizes = batches(checked.batch_size, book.law.noise.critical_batch, self._network.samples)

        def show_prediction(done: int, total: int) -> None:
            self._observe(AdvicePulse(f"predicting steps, {done} of {total}"))

        considered = candidates(checked, sizes, show_prediction)

        def rank() -> list[Way]:
            return affordable(ways(considered, book, checked.cluster), self._request.max_cost)

        status: Literal["complete", "interrupted"] = "complete"
        try:
            confirm(rank, book, self._train_seeds, lambda: checked.in_time)
        except KeyboardInterrupt:
            status = "interrupted"
        return make_record(checked, book, considered, status, folder, rows_meet=self._trainer.rows_meet)

    def _learn(self) -> Book:
        """Train one worker with the task's own settings, and measure the noise of its gradient on the way."""
        config, samples, batch_size = self._network.config, self._network.samples, self._checked.batch_size
        recipe = Recipe("allreduce", 1, batch_size, config.lr, 0.0)
        epochs = self._request.max_epochs or EPOCHS * config.epochs
        most_steps = math.ceil(epochs * math.ceil(samples / batch_size))
        first = self._trainer.train(recipe, 0, most_steps, self._checked.until_s)
        self._check_reached(first)
        options = {**recipe.options(0, first.made), "observe": self._show_noise}
        noise = median_noise(noise_scale(self._request.task, **options))
        trainings = self._train_seeds(recipe, most_steps, [first])
        root = self._network.task.optimizer not in ("sgd", "momentum")
        law = StepsLaw(batch_size, known_from(trainings), noise, root, config.lr)
        return Book(law, samples, trainings)

    def _train_seeds(
        self, recipe: Recipe, most_steps: int, before: Sequence[TargetTraining] = ()
    ) -> list[TargetTraining]:
        """Return trainings with one seed after the other, `before` included, until one fails or the budget ends."""
        trainings = list(before)
        while len(trainings) < SEEDS and self._checked.in_time and all(t.steps is not None for t in trainings):
            training = self._trainer.train(recipe, len(trainings), most_steps, self._checked.until_s)
            if training.steps is None and not self._checked.in_time and training.made < most_steps:
                break  # the budget has ended it, which says nothing about the recipe
            trainings.append(training)
        return trainings

    def _check_reached(self, first: TargetTraining) -> None:
        if first.steps is None:
            ended = "" if self._checked.in_time else ", which took the whole --budget"
            raise UserError(
                f"one worker with the task's own settings reached {100 * first.accuracy:.1f} % in "
                f"{figure(first.epochs)} epochs{ended}; no advice can be given for "
                f"{100 * self._request.target_accuracy:g} %"
            )

    def _show_noise(self, pulse: Pulse) -> None:
        self._observe(AdvicePulse(f"measuring the gradient's noise, step {pulse.step:,} of {pulse.steps:,}"))

    def _show_training(self, recipe: Recipe, seed: int, epoch: float, accuracy: float) -> None:
        who = "one worker" if recipe.workers == 1 else f"{recipe.workers:,} workers ({recipe.sync})"
        doing = f"training {who}, batch {recipe.batch_size:,}, seed {seed}, epoch {epoch:.1f}"
        self._observe(AdvicePulse(doing, accuracy))
