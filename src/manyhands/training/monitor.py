"""The figure that decides which evaluation is the best one, and when a run without a better one ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from manyhands.config import RunConfig
from manyhands.record.run import EvaluationRecord
from manyhands.tasks import Task
from manyhands.tasks.metrics import ACCURACY, LOSS, Direction, direction_of


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
