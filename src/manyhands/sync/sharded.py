"""Sharded optimiser: every rank steps its own slice of the weights (the idea of ZeRO stage 1, Rajbhandari 2020)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.replica.update import Moments, Update, cut_aligned
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class Sharded(Sync):
    """Scatter the summed gradients; each rank keeps the optimiser state of its slice, and the slices are gathered."""

    exact: ClassVar[bool] = True
    updates: ClassVar = "slice"

    _rows: Tensor = field(init=False, repr=False)
    """A buffer for gradients or weights, one row per rank; the last row may end in padding."""
    _update: Update = field(init=False, repr=False)

    def start(self, replica: Replica, comm: Comm) -> None:
        comm.broadcast_(replica.params)
        spans = cut_aligned(replica.params.numel(), comm.size)
        self._rows = replica.params.new_zeros(comm.size, spans[0][1])
        self._update = replica.update
        self._update.narrow(*spans[comm.rank])

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        start, stop = replica.update.start, replica.update.stop
        self._rows.view(-1)[: replica.grads.numel()] = replica.grads
        replica.grads[start:stop] = comm.reduce_scatter(self._rows)[: stop - start]
        replica.apply()
        row = self._rows[comm.rank]
        row[: stop - start] = replica.params[start:stop]
        replica.params.copy_(comm.all_gather(row).view(-1)[: replica.params.numel()])

    def moments(self, replica: Replica, comm: Comm) -> Moments:
        elements, scalars = replica.update.moments()
        padded = elements.new_zeros(len(elements), self._rows.shape[1])
        padded[:, : elements.shape[1]] = elements
        whole = torch.cat(list(comm.all_gather(padded)), 1)
        return Moments(whole[:, : replica.update.num_weights], scalars)

    def notes(self) -> dict[str, float]:
        """Return the size of this rank's optimiser state."""
        return {"optimizer_bytes": float(self._update.moments().elements.nbytes)}
