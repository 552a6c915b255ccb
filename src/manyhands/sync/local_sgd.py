"""Local SGD: several private steps, then the mean of the weights (Stich 2019; papers 001 and 004)."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.errors import check
from manyhands.replica import Replica
from manyhands.sync.base import AveragedSync, apply_alone, mean_


@final
@dataclass(kw_only=True, slots=True)
class LocalSGD(AveragedSync):
    """Let every worker step by itself, and average the weights every `period` steps."""

    exchanges: ClassVar = "period"
    pattern: ClassVar = "mean"

    period: int = 8
    """Steps between two averagings."""

    def __post_init__(self) -> None:
        check(self.period >= 1, f"period of local-sgd must be at least 1, got {self.period}")

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        apply_alone(replica, comm)
        if (i + 1) % self.period == 0:
            mean_(comm, replica.params)
