"""Gossip: after each step every worker averages its weights with its neighbours on a ring (Lian et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import AveragedSync, apply_alone


@final
@dataclass(kw_only=True, slots=True)
class Gossip(AveragedSync):
    """Step alone, then average this worker's weights with those of both neighbours on a ring."""

    requires: ClassVar[frozenset[str]] = frozenset({"p2p"})
    pattern: ClassVar = "ring"

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Step alone, then average with the neighbours, which leaves the mean over all workers unchanged."""
        apply_alone(replica, comm)
        if comm.size == 1:
            return
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        neighbours = [_shift(replica.params, comm, right, left)]
        if comm.size > 2:
            neighbours.append(_shift(replica.params, comm, left, right))
        for other in neighbours:
            replica.params.add_(other)
        replica.params.div_(1 + len(neighbours))


def _shift(t: Tensor, comm: Comm, to: int, source: int) -> Tensor:
    """Send to one neighbour and receive from the other; odd ranks receive first, since a send may wait for that."""
    received = torch.empty_like(t)
    if comm.rank % 2:
        comm.recv(received, source=source)
        comm.send(t, to=to)
    else:
        comm.send(t, to=to)
        comm.recv(received, source=source)
    return received
