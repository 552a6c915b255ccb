"""Test loss and accuracy during a virtual run; evaluations take no virtual time."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple, final

from torch import nn

from manyhands.comm.self_ import SelfComm
from manyhands.data import AnySplit
from manyhands.errors import Diverged
from manyhands.launch.base import Observer
from manyhands.record.run import EvaluationRecord
from manyhands.training.evaluate import Scoring, evaluate
from manyhands.training.journal import pulse_of
from manyhands.training.meter import TimeSplit
from manyhands.training.plan import Plan

SHARE = 1 / 8
"""Steps between evaluations, as a share of an epoch or of all steps until then, whichever is more."""
INTERVAL_S = 0.25
"""Real seconds between two progress reports."""


class Evaluation(NamedTuple):
    """Loss and accuracy on the test data."""

    loss: float
    accuracy: float | None


@final
class Scores:
    """The evaluations of one run, and its progress reports."""

    def __init__(self, plan: Plan, split: AnySplit, scoring: Callable[[nn.Module], Scoring], observe: Observer) -> None:
        """`scoring` tells what a network is measured by: its loss may look at the network."""
        self.plan, self.steps = plan, evaluation_steps(plan.steps, plan.steps_per_epoch)
        self.evaluations: dict[int, Evaluation] = {}
        """By the number of steps taken."""
        self._split, self._scoring, self._observe = split, scoring, observe
        self._begun = self._shown = time.perf_counter()

    def take(self, module: nn.Module, step: int) -> None:
        """Evaluate the weights after `step` steps."""
        figures = evaluate(module, self._split, self._scoring(module), SelfComm())
        result = Evaluation(figures.loss, figures.accuracy)
        if not math.isfinite(result.loss):
            raise Diverged(f"the test loss became {result.loss} after step {step}; try a smaller --lr")
        self.evaluations[step] = result

    def report(self, step: int, loss: float) -> None:
        """Report progress if the last report is `INTERVAL_S` old; `loss` is the training loss."""
        now = time.perf_counter()
        if now - self._shown > INTERVAL_S or step == self.plan.steps:
            self._shown = now
            tested, last = next(reversed(self.evaluations.items()), (0, None))
            shown = last and EvaluationRecord(step=tested, epoch=0, test_loss=last.loss, test_accuracy=last.accuracy)
            split = TimeSplit(train_s=now - self._begun)
            self._observe(pulse_of(self.plan, step, loss, shown, split))


def evaluation_steps(steps: int, steps_per_epoch: int) -> list[int]:
    """Return the steps after which to evaluate: first at equal, then at growing distances, and at the end."""
    ends = [0]
    while ends[-1] < steps:
        gap = max(1, int(SHARE * steps_per_epoch), int(SHARE * ends[-1]))
        ends.append(min(steps, ends[-1] + gap))
    return ends[1:]
