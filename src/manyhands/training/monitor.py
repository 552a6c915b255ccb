"""The figure that decides which evaluation is the best one, when a run without a better one ends, and some rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.record.run import EvaluationRecord
from manyhands.replica import Replica
from manyhands.tasks import Task
from manyhands.tasks.metrics import ACCURACY, LOSS, Direction, direction_of, known_direction
from manyhands.training.plan import Plan

MOST_RATES = 20_000
"""Steps of a scheduler that are tried at most."""


@final
@dataclass(frozen=True)
class Monitor:
    """Judges the evaluations of a run; all workers have the same ones, and so decide alike."""

    name: str
    better: Direction
    patience: int
    """Evaluations without a better one after which the run ends; 0 for none."""
    keeps_best: bool
    """Whether the weights of the best evaluation are kept."""

    def best(self, history: Sequence[EvaluationRecord]) -> EvaluationRecord | None:
        """Return the best evaluation, the first of equal ones."""
        choose = min if self.better == "lower" else max
        return choose(history, key=lambda evaluation: figure_of(evaluation, self.name), default=None)

    def is_over(self, history: Sequence[EvaluationRecord]) -> bool:
        """Tell whether the last `patience` evaluations were no better than one before them."""
        best = self.best(history)
        return best is not None and 0 < self.patience <= len(history) - 1 - list(history).index(best)


def figure_of(evaluation: EvaluationRecord, name: str) -> float:
    """Return the figure of this name."""
    if name == LOSS:
        return evaluation.test_loss
    value = evaluation.test_accuracy if name == ACCURACY else evaluation.metrics[name]
    assert value is not None, "a task without accuracy was refused"
    return value


def monitor_of(task: Task, config: RunConfig) -> Monitor | None:
    """Return what judges a run's evaluations; None for a run that takes no notice of them."""
    if not (config.patience or config.keep_best):
        return None
    better = direction_of(config.monitor, task.metrics)
    return Monitor(config.monitor, better, config.patience, config.keep_best)


def check_rates(task: Task, replica: Replica, plan: Plan) -> None:
    """Refuse a scheduler that fails before the end of the run, and one that takes worse figures for better ones."""
    rates, monitor = replica.update.rates, plan.config.monitor
    if rates is None:
        return
    if not rates.watches:
        rates.at(min(plan.steps, MOST_RATES) - 1, plan.steps_per_epoch)
        return
    better = known_direction(monitor, task.metrics)
    mode = "min" if better == "lower" else "max"
    check(
        better in (None, rates.better),
        f"ReduceLROnPlateau watches {monitor}, of which {better} is better, but its mode is not '{mode}'; "
        f"write mode='{mode}', or monitor another figure",
    )


def check_unwatched(replica: Replica, why: str) -> None:
    """Refuse a scheduler that looks at evaluations where the training makes none, for the reason `why`."""
    rates = replica.update.rates
    check(
        rates is None or not rates.watches,
        f"ReduceLROnPlateau would never change the learning rate, since {why}; use a scheduler that goes by steps",
    )
