"""What a virtual run's weights score on the test data, after which of its steps; to the run that takes no time."""

import math
import time
from typing import NamedTuple, final

from torch import nn

from manyhands.comm.self_ import SelfComm
from manyhands.data import Split
from manyhands.errors import Diverged
from manyhands.launch.base import Observer
from manyhands.replica.base import Loss
from manyhands.training.evaluate import evaluate
from manyhands.training.journal import pulse_of
from manyhands.training.meter import TimeSplit
from manyhands.training.plan import Plan

SHARE = 1 / 8
"""Of an epoch, or of all steps until then, if that is more: the steps from one evaluation to the next."""
INTERVAL_S = 0.25
"""Real time between two pulses."""


class Evaluation(NamedTuple):
    """What one evaluation says."""

    loss: float
    accuracy: float


@final
class Scores:
    """The evaluations of one run; they also tell whoever watches how far it is."""

    def __init__(self, plan: Plan, split: Split, loss: Loss, observe: Observer) -> None:
        self.plan, self.steps = plan, evaluation_steps(plan.steps, plan.steps_per_epoch)
        self.found: dict[int, Evaluation] = {}
        """By the steps made."""
        self._split, self._loss, self._observe = split, loss, observe
        self._begun = self._shown = time.perf_counter()

    def take(self, module: nn.Module, step: int) -> None:
        """Evaluate the weights that the run has after so many steps."""
        found = Evaluation(*evaluate(module, self._split, self._loss, SelfComm(), self.plan.config.top))
        if not math.isfinite(found.loss):
            raise Diverged(f"the test loss became {found.loss} after step {step}; try a smaller --lr")
        self.found[step] = found

    def tell(self, step: int, loss: float) -> None:
        """Show how far the run is, now and then; the loss is that of training."""
        now = time.perf_counter()
        if now - self._shown > INTERVAL_S or step == self.plan.steps:
            self._shown = now
            last = next(reversed(self.found.values()), None)
            split = TimeSplit(train_s=now - self._begun)
            self._observe(pulse_of(self.plan, step, loss, last and last.accuracy, split))


def evaluation_steps(steps: int, steps_per_epoch: int) -> list[int]:
    """Return after how many steps to evaluate: evenly at first, later at ever greater distances; and at the end."""
    found = [0]
    while found[-1] < steps:
        gap = max(1, int(SHARE * steps_per_epoch), int(SHARE * found[-1]))
        found.append(min(steps, found[-1] + gap))
    return found[1:]
