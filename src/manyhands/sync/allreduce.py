"""All-reduce: sum the gradients on every rank, and let every rank make the same step."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class AllReduce(Sync):
    """Sum the gradients over all ranks; every rank applies the sum."""

    exact: ClassVar[bool] = True

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        comm.all_reduce_(replica.grads)
        replica.apply()
