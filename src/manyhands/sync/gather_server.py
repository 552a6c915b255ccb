"""Gather server: rank 0 gathers the gradients, averages, updates and sends the weights back (paper 002)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class GatherServer(Sync):
    """Send every gradient to rank 0, which is a worker too: it sums, applies, and sends the weights to each."""

    exact: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"p2p"})
    updates: ClassVar = "root"
    pattern: ClassVar = "star"

    _received: list[Tensor] = field(init=False, repr=False, default_factory=list)
    """At rank 0, the gradients of the other ranks."""

    def start(self, replica: Replica, comm: Comm) -> None:
        comm.broadcast_(replica.params)
        if comm.rank == 0:
            self._received = [torch.empty_like(replica.grads) for _ in range(1, comm.size)]

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        if comm.rank > 0:
            comm.send(replica.grads, to=0)
            comm.recv(replica.params, source=0)
            return
        for rank, gradient in enumerate(self._received, 1):
            comm.recv(gradient, source=rank)
        replica.grads.copy_(comm.add([replica.grads, *self._received]))
        replica.apply()
        for rank in range(1, comm.size):
            comm.send(replica.params, to=rank)
