"""Average per epoch: workers step by themselves; the weights are averaged after each epoch (papers 001 and 004)."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import AveragedSync, mean_


@final
@dataclass(kw_only=True, slots=True)
class AverageEpoch(AveragedSync):
    """Let every worker step by itself, and average the weights at the end of each epoch."""

    exchanges: ClassVar = "epoch"
    pattern: ClassVar = "mean"

    def end_epoch(self, replica: Replica, comm: Comm) -> None:
        mean_(comm, replica.params)
