"""One step of a worker: compute the gradients, let the strategy exchange and update, and measure both.

A run, the simulator's virtual ranks and the calibration all make their steps here, so that predictions and measurements
are of the same code as a run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm
from manyhands.replica import Replica
from manyhands.replica.base import Piece, sum_of_lanes
from manyhands.sync import Sync
from manyhands.training.meter import StepMeter
from manyhands.training.plan import Indices, Plan, Stopwatch


def compute_gradients(replica: Replica, plan: Plan, batch: Indices, step: int) -> Tensor:
    """Compute the rank's share of a global batch's gradient into `grads`, set the step's learning rate, and return the
    rank's share of the loss."""
    set_rates(replica, plan, step)
    lanes = plan.lanes(batch, step, whole=replica.meets)
    return sum_of_lanes(replica, _reweighted(replica, lanes))


def set_rates(replica: Replica, plan: Plan, step: int) -> None:
    """Set the learning rates of a step, and what else the task's scheduler and groups say of it."""
    update = replica.update
    update.scale = plan.schedule.scale(step)
    if update.rates is not None:
        last = min(step, plan.steps - 1)  # trials and measurements may make more steps than the run
        update.use(update.rates.at(last, plan.steps_per_epoch, plan.schedule.seen))


def _reweighted(replica: Replica, lanes: Sequence[Iterable[Piece]]) -> Sequence[Iterable[Piece]]:
    """Weight the pieces as the loss asks: by their rows, not at all for a sum, or by the total weight of the rows."""
    criterion = replica.criterion
    if criterion.reduction == "sum":
        return [((batch, 1.0 if batch.rows else 0.0) for batch, _ in lane) for lane in lanes]
    if criterion.weight is None:
        return lanes
    kept = [list(lane) for lane in lanes]
    amounts = [[criterion.amount(batch.y, batch.rows) for batch, _ in lane] for lane in kept]
    amount = _sum_in_tree([sum(lane) for lane in amounts])
    if replica.peers.meeting:
        factor = 1 / (float(replica.peers.sum_(torch.tensor([amount], dtype=torch.float64))) or 1.0)
    else:  # a worker who steps alone has a share of the mean that goes by its rows
        factor = sum(share for lane in kept for _, share in lane) / (amount or 1.0)
    return [
        [(batch, amount * factor) for (batch, _), amount in zip(lane, of_lane, strict=True)]
        for lane, of_lane in zip(kept, amounts, strict=True)
    ]


def _sum_in_tree(values: Sequence[float]) -> float:
    """Add the lanes' values in the order of their gradients, so that --exact gives the same bits."""
    middle = len(values) // 2
    return values[0] if middle == 0 else _sum_in_tree(values[:middle]) + _sum_in_tree(values[middle:])


@final
@dataclass
class Stepper:
    """Makes the steps of one worker: `compute`, then `update`."""

    replica: Replica
    strategy: Sync
    comm: Comm
    """The strategy's comm: the meter's traced comm, or one that wraps it."""
    meter: StepMeter
    steps_per_epoch: int
    gradients: Callable[[Indices, int], Tensor]
    """Computes the gradients of a global batch in a step, and returns the loss: see `compute_gradients`."""
    on_begin: Callable[[int], None] = lambda step: None
    """Called with the number of each step when it begins."""
    gathering: Stopwatch = field(default_factory=Stopwatch)
    """Times the part of `gradients` that gathers rows: the plan's."""
    met: TracedComm | None = None
    """Counts the calls that layers and losses make inside `gradients`: that of the replica's peers."""
    met_s: float = 0.0
    """Seconds of those calls in the last step."""
    begun_s: float = 0.0
    """When the last step began, by the comm's clock."""
    computed_s: float = 0.0
    """When its gradients were ready."""

    def __post_init__(self) -> None:
        self._clock, self._spans = self.meter.traced.clock, self.meter.traced.spans

    def step(self, batch: Indices, step: int) -> bool:
        """Make one step; return whether the meter is to be flushed."""
        self.compute(batch, step)
        return self.update(step)

    def compute(self, batch: Indices, step: int) -> None:
        """Compute the gradients of the rank's share of a global batch."""
        self.begun_s = self._clock()
        self.on_begin(step)
        self._spans.at(step)
        self._loss = self.gradients(batch, step)
        self.computed_s = self._clock()
        self.met_s = self._take_met()

    def _take_met(self) -> float:
        """Hand the calls of the replica's peers to the meter; return their seconds."""
        if self.met is None:
            return 0.0
        seconds = sum(self.met.collective_s)
        self.meter.traced.absorb(self.met)
        return seconds

    def update(self, step: int) -> bool:
        """Let the strategy exchange and update; return whether the meter is to be flushed."""
        accepted = self.replica.accepts()
        self._take_met()
        self.replica.skips = not accepted
        if accepted or self.strategy.apart:  # workers who step alone still meet as often as the others
            self.strategy.step(self.replica, self.comm, step)
        if (step + 1) % self.steps_per_epoch == 0:
            self.strategy.end_epoch(self.replica, self.comm)
        begun_s, computed_s, ended_s = self.begun_s, self.computed_s, self._clock()
        self._spans.add("forward and backward", "compute", begun_s, computed_s)
        self._spans.add("agree and update", "update", computed_s, ended_s)
        return self.meter.add(self._loss, ended_s - begun_s, computed_s - begun_s - self.met_s, self.gathering.take())
