"""Gather server: rank 0 gathers the gradients, averages, updates and sends the weights back (paper 002)."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class GatherServer(Sync):
    """Send every gradient to rank 0, which works too: it sums, applies, and sends the weights to each."""

    exact: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"p2p"})
    updates: ClassVar = "root"
    pattern: ClassVar = "star"

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Gather, let rank 0 apply, and send back."""
        if comm.rank > 0:
            comm.send(replica.grads, to=0)
            comm.recv(replica.params, source=0)
            return
        parts = [replica.grads, *(torch.empty_like(replica.grads) for _ in range(1, comm.size))]
        for rank in range(1, comm.size):
            comm.recv(parts[rank], source=rank)
        replica.grads.copy_(comm.add(parts))
        replica.apply()
        for rank in range(1, comm.size):
            comm.send(replica.params, to=rank)
