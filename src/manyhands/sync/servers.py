"""What strategies with server ranks share: who holds which slice of the weights, and what travels between them."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from manyhands.comm import ANY, Comm
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.record import read_events
from manyhands.replica import Replica
from manyhands.replica.update import Moments, cut_aligned
from manyhands.sync.base import Sync

PUSH, FETCH, STATE, DONE = range(4)
"""A worker sends a gradient and gets weights; wants only weights; wants the optimiser's state; is done."""


@final
class Shards:
    """The slices, seen from one rank: workers come first, servers after them.

    Every message of a worker has the same length: what it is, the scale of the learning rate, and a gradient.
    """

    def __init__(self, replica: Replica, comm: Comm, servers: int) -> None:
        self.num_workers = comm.size - servers
        self._replica = replica
        self.spans = cut_aligned(replica.params.numel(), servers)
        # The scale travels as the bytes of a double, since the weights' type would round it.
        self._head = 1 + torch.float64.itemsize // replica.params.element_size()
        lengths = [self._head + stop - start for start, stop in self.spans]  # of a message to each server
        if comm.rank >= self.num_workers:
            self._own = comm.rank - self.num_workers
            replica.update.narrow(*self.spans[self._own])
            lengths = [lengths[self._own]] * self.num_workers  # of one from each worker
        self._mail = [replica.params.new_zeros(length) for length in lengths]
        self._gradients = [mail[self._head :] for mail in self._mail]
        self._told = (-1, 0.0)

    def tell(self, comm: Comm, what: int) -> None:
        """Send a message to every server; a push carries this worker's gradient."""
        self._head_with(what, self._replica.update.scale)
        for server, ((start, stop), mail) in enumerate(zip(self.spans, self._mail, strict=True)):
            if what == PUSH:
                self._gradients[server].copy_(self._replica.grads[start:stop])
            comm.send(mail, to=self.num_workers + server)

    def _head_with(self, what: int, scale: float) -> None:
        """Write what messages begin with, unless the last ones began so, as they do while the rate stays."""
        if (what, scale) != self._told:
            self._told = what, scale
            in_bytes = torch.tensor([scale], dtype=torch.float64)
            for mail in self._mail:
                mail[0], mail[1 : self._head] = what, in_bytes.view(mail.dtype).to(mail.device)

    def receive(self, comm: Comm) -> None:
        """Take every server's slice of the weights."""
        for server, (start, stop) in enumerate(self.spans):
            comm.recv(self._replica.params[start:stop], source=self.num_workers + server)

    def receive_state(self, comm: Comm) -> Moments:
        """Take every server's slice of the optimiser's state."""
        slices, scalars = [], torch.empty(0, dtype=torch.float64)
        num_weights = self._replica.update.num_weights
        for server, (start, stop) in enumerate(self.spans):
            source = self.num_workers + server
            counts = torch.empty(2, dtype=torch.int64)
            comm.recv(counts, source)
            rows, num_scalars = counts.tolist()
            width = min(stop, num_weights) - min(start, num_weights)
            slices.append(self._replica.params.new_empty(rows, width))
            scalars = scalars.new_empty(num_scalars)
            comm.recv(slices[-1], source)
            comm.recv(scalars, source)
        return Moments(torch.cat(slices, 1), scalars)

    def take(self, comm: Comm, source: int = ANY) -> tuple[int, int]:
        """Wait for a message; return who sent it and what it is. Its gradient is then in `grads`."""
        worker = comm.recv(self._mail[0], source)
        self.open(self._mail[0])
        return worker, int(self._mail[0][0])

    def keep(self) -> Tensor:
        """Return a copy of the message taken last, to be opened later."""
        return self._mail[0].clone()

    def open(self, mail: Tensor) -> None:
        """Put the gradient and the scale of the learning rate of a message where a step finds them."""
        start, stop = self.spans[self._own]
        self._replica.grads[start:stop] = mail[self._head :]
        self._replica.update.scale = self._scale(mail)

    def take_all(self, comm: Comm) -> int:
        """Wait for a message of every worker; return what they are. The sum of the gradients is then in `grads`."""
        for worker, mail in enumerate(self._mail):
            comm.recv(mail, worker)
        start, stop = self.spans[self._own]
        self._replica.grads[start:stop] = comm.add(self._gradients)
        self._replica.update.scale = self._scale(mail)
        return int(mail[0])

    def _scale(self, mail: Tensor) -> float:
        return float(mail[1 : self._head].cpu().clone().view(torch.float64))

    def answer(self, comm: Comm, worker: int) -> None:
        """Send the own slice of the weights."""
        start, stop = self.spans[self._own]
        comm.send(self._replica.params[start:stop], to=worker)

    def answer_state(self, comm: Comm, worker: int) -> None:
        """Send the own slice of the optimiser's state."""
        elements, scalars = self._replica.update.moments()
        comm.send(torch.tensor([len(elements), len(scalars)]), to=worker)
        comm.send(elements, to=worker)
        comm.send(scalars, to=worker)


@final
class GradientOrder:
    """In which order a server applies gradients: as they come, or as an earlier run had it."""

    def __init__(self, replay: str, server: int) -> None:
        """Keep to the order in which `server` applied gradients in the run of folder `replay`, if one is given."""
        self._order = deque(event["worker"] for event in (read_events(replay, server) if replay else ()))
        self._kept = dict[int, Tensor]()

    def due(self, worker: int, shards: Shards) -> Iterator[int]:
        """Yield whose gradients are to be applied now that this worker's came; each is then in `grads`."""
        if not self._order:
            yield worker
            return
        self._kept[worker] = shards.keep()
        while self._order and self._order[0] in self._kept:
            first = self._order.popleft()
            shards.open(self._kept.pop(first))
            yield first


def check_replay(folder: str, servers: int, config: RunConfig, steps: int, steps_per_epoch: int) -> None:
    """Refuse an order that this run cannot keep to: its workers meet after each epoch, and would wait for ever."""
    check(config.checkpoint_every == 0, "a replay keeps no checkpoints; leave --checkpoint-every out")
    for server in range(servers):
        workers = [event["worker"] for event in read_events(folder, server)]
        for start in range(0, steps, steps_per_epoch):
            stop = min(start + steps_per_epoch, steps)
            share = Counter(workers[start * config.size : stop * config.size])
            check(
                share == dict.fromkeys(range(config.size), stop - start) and len(workers) == steps * config.size,
                f"'{folder}' has the order of a run with {len(set(workers))} workers and {len(workers)} updates, which "
                f"one with {config.size} workers, {steps} steps and {steps_per_epoch} steps per epoch cannot replay",
            )


def staleness(events: Sequence[dict[str, int]]) -> dict[str, float]:
    """Sum up how many updates old the weights were for which gradients were computed."""
    stale = [event["staleness"] for event in events]
    if not stale:
        return {}
    return {"updates": len(stale), "staleness_mean": sum(stale) / len(stale), "staleness_max": max(stale)}


@dataclass(kw_only=True, slots=True)
class ServerSync(Sync, ABC):
    """A strategy whose weights are held by server ranks; what they wait for is left to each."""

    requires: ClassVar[frozenset[str]] = frozenset({"p2p", "split", "servers"})
    updates: ClassVar = "servers"

    servers: int = 1
    """Server ranks, over which the weights are cut; they come on top of the workers."""
    _shards: Shards = field(init=False, repr=False)
    _events: list[dict[str, int]] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        check(self.servers >= 1, f"servers must be at least 1, got {self.servers}")

    def num_servers(self) -> int:
        """Return the option."""
        return self.servers

    def start(self, replica: Replica, comm: Comm) -> None:
        """Agree on the weights, and give each server its slice."""
        comm.broadcast_(replica.params)
        self._shards = Shards(replica, comm, self.servers)

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Push, and wait for the weights."""
        self._shards.tell(comm, PUSH)
        self._shards.receive(comm)

    @abstractmethod
    def serve(self, replica: Replica, comm: Comm) -> None:
        """Be a server until the workers are done: what it waits for is the strategy."""

    def finish(self, replica: Replica, comm: Comm) -> None:
        """Settle, and let the servers go."""
        self.settle(replica, comm)
        self._shards.tell(comm, DONE)

    def events(self) -> list[dict[str, int]]:
        """Return the gradients this server applied by themselves: whose, and how many updates its weights were old."""
        return self._events

    def notes(self) -> dict[str, float]:
        """Tell how old they were on the whole."""
        return staleness(self._events)

    def moments(self, replica: Replica, comm: Comm) -> Moments:
        """Let rank 0 have the servers' optimiser state."""
        self._shards.tell(comm, STATE)
        return self._shards.receive_state(comm) if comm.rank == 0 else replica.update.moments()
