"""Reduce and broadcast: the root applies the summed gradients and sends the weights (papers 000 and 003)."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class ReduceBroadcast(Sync):
    """Sum the gradients at rank 0, which applies them and broadcasts the weights."""

    exact: ClassVar[bool] = True
    updates: ClassVar = "root"

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        comm.reduce_(replica.grads)
        if comm.rank == 0:
            replica.apply()
        comm.broadcast_(replica.params)
