"""Sharded optimiser: every rank steps its own slice of the weights (the idea of ZeRO stage 1, Rajbhandari 2020)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.replica.update import Moments
from manyhands.sync.base import Sync
from manyhands.sync.slices import Slices


@final
@dataclass(kw_only=True, slots=True)
class Sharded(Sync):
    """Scatter the summed gradients; each rank keeps the optimiser state of its slice, and the slices are gathered."""

    exact: ClassVar[bool] = True
    updates: ClassVar = "slice"

    _slices: Slices = field(init=False, repr=False)

    def start(self, replica: Replica, comm: Comm) -> None:
        comm.broadcast_(replica.params)
        self._slices = Slices(replica, comm)

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        self._slices.sum_(comm)
        replica.apply()
        self._slices.gather_(comm)

    def moments(self, replica: Replica, comm: Comm) -> Moments:
        return self._slices.moments(comm)

    def notes(self) -> dict[str, float]:
        """Return the size of this rank's optimiser state."""
        return {"optimizer_bytes": float(self._slices.update.num_bytes())}
