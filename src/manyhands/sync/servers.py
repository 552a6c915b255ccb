"""What strategies with server ranks share: the slices of the weights, and the messages between workers and servers."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from manyhands.comm import ANY, Comm
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.record.run import read_events
from manyhands.replica import Replica
from manyhands.replica.optimizer.moments import Moments, join
from manyhands.replica.optimizer.norm import tree_sum
from manyhands.sync.base import Sync

PUSH, FETCH, STATE, DONE = range(4)
"""A worker's requests: apply a gradient and send weights; send weights; send the optimiser's state; stop."""


@final
class Shards:
    """The slices of the weights, one per server, and this rank's messages; workers come first, servers after them.

    Every message of a worker has the same length: a head of request and settings of the step, and a gradient.
    """

    def __init__(self, replica: Replica, comm: Comm, servers: int, *, lockstep: bool = True) -> None:
        self.num_workers = comm.size - servers
        self._replica, self._lockstep = replica, lockstep
        self.spans = replica.update.cut(servers)
        # The settings travel as the bytes of doubles, since the weights' type would round them.
        doubles = len(replica.update.settings) * torch.float64.itemsize
        self._head = 1 + doubles // replica.params.element_size()
        lengths = [self._head + stop - start for start, stop in self.spans]  # of a message to each server
        if comm.rank >= self.num_workers:
            server = comm.rank - self.num_workers
            self._start, self._stop = self.spans[server]
            replica.update.narrow(self._start, self._stop)
            replica.update.join = lambda sums: self._joined(comm, sums)
            if not lockstep:
                replica.update.clip = 0.0  # each worker has clipped its gradient
            lengths = [lengths[server]] * self.num_workers  # of a message from each worker
        self._messages = [replica.params.new_zeros(length) for length in lengths]
        self._gradients = [message[self._head :] for message in self._messages]
        self._last_head: tuple[int, tuple[float, ...]] = (-1, ())

    def send(self, comm: Comm, request: int) -> None:
        """Send a request to every server; a `PUSH` carries this worker's gradient."""
        update = self._replica.update
        if request == PUSH and update.clip and not self._lockstep:
            update.clip_(share=1 / self.num_workers)
        head = request, update.settings
        if head != self._last_head:  # seldom: most steps send the same request at the same learning rate
            self._last_head = head
            settings = torch.tensor(head[1], dtype=torch.float64)
            for message in self._messages:
                message[0], message[1 : self._head] = request, settings.view(message.dtype).to(message.device)
        for server, ((start, stop), message) in enumerate(zip(self.spans, self._messages, strict=True)):
            if request == PUSH:
                self._gradients[server].copy_(self._replica.grads[start:stop])
            comm.send(message, to=self.num_workers + server)

    def receive(self, comm: Comm) -> None:
        """Receive every server's slice of the weights."""
        for server, (start, stop) in enumerate(self.spans):
            comm.recv(self._replica.params[start:stop], source=self.num_workers + server)

    def receive_state(self, comm: Comm) -> Moments:
        """Receive every server's slice of the optimiser's state."""
        slices = []
        num_weights = self._replica.update.num_weights
        for server, (start, stop) in enumerate(self.spans):
            source = self.num_workers + server
            counts = torch.empty(2, dtype=torch.int64)
            comm.recv(counts, source)
            rows, num_scalars = counts.tolist()
            width = min(stop, num_weights) - min(start, num_weights)
            elements = self._replica.params.new_empty(rows, width)
            scalars = torch.empty(num_scalars, dtype=torch.float64)
            comm.recv(elements, source)
            comm.recv(scalars, source)
            slices.append(Moments(elements, scalars))
        return join(slices)

    def take(self, comm: Comm) -> tuple[int, int]:
        """Wait for a message of any worker and open it; return the worker and its request."""
        message = self._messages[0]
        worker = comm.recv(message, ANY)
        self.open(message)
        return worker, int(message[0])

    def keep(self) -> Tensor:
        """Return a copy of the message taken last, to be opened later."""
        return self._messages[0].clone()

    def open(self, message: Tensor) -> None:
        """Put a message's gradient and settings into the replica."""
        self._replica.grads[self._start : self._stop] = message[self._head :]
        self._replica.update.use_settings(self._settings(message))

    def take_all(self, comm: Comm) -> int:
        """Wait for a message of every worker, put the sum of the gradients into `grads`, and return the request."""
        for worker, message in enumerate(self._messages):
            comm.recv(message, worker)
        self._replica.grads[self._start : self._stop] = comm.add(self._gradients)
        self._replica.update.use_settings(self._settings(message))
        return int(message[0])

    def _settings(self, message: Tensor) -> tuple[float, ...]:
        return tuple(message[1 : self._head].cpu().clone().view(torch.float64).tolist())

    def _joined(self, comm: Comm, sums: Tensor) -> Tensor:
        """Return the sum of squares of all slices: the first server adds those of the others, and tells them."""
        if len(self.spans) == 1:
            return sums
        update, first, servers = self._replica.update, self.num_workers, range(self.num_workers, comm.size)
        if comm.rank > first:
            total = sums.new_empty(1)
            comm.send(sums, to=first)
            comm.recv(total, first)
            return total
        parts = [sums, *(sums.new_empty(update.num_sums(*span)) for span in self.spans[1:])]
        for server, part in zip(servers[1:], parts[1:], strict=True):
            comm.recv(part, server)
        total = sums.new_tensor([tree_sum(torch.cat(parts))])
        for server in servers[1:]:
            comm.send(total, to=server)
        return total

    def answer(self, comm: Comm, worker: int) -> None:
        """Send this server's slice of the weights."""
        comm.send(self._replica.params[self._start : self._stop], to=worker)

    def answer_state(self, comm: Comm, worker: int) -> None:
        """Send this server's slice of the optimiser's state."""
        elements, scalars = self._replica.update.moments()
        comm.send(torch.tensor([len(elements), len(scalars)]), to=worker)
        comm.send(elements, to=worker)
        comm.send(scalars, to=worker)


@final
class GradientOrder:
    """The order in which a server applies gradients: as they arrive, or that of an earlier run."""

    def __init__(self, replay: str, server: int) -> None:
        """Repeat the order in which `server` applied gradients in the run of folder `replay`, unless that is empty."""
        self._order = deque(event["worker"] for event in (read_events(replay, server) if replay else ()))
        self._kept = dict[int, Tensor]()

    def due(self, worker: int, shards: Shards) -> Iterator[int]:
        """Yield the workers whose gradients are due after a push of `worker`, each when its gradient is in `grads`."""
        if not self._order:
            yield worker
            return
        self._kept[worker] = shards.keep()
        while self._order and self._order[0] in self._kept:
            first = self._order.popleft()
            shards.open(self._kept.pop(first))
            yield first


def check_replay(folder: str, servers: int, config: RunConfig, steps: int, steps_per_epoch: int) -> None:
    """Raise a UserError if this run, whose workers meet after each epoch, would wait for ever in that order."""
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


@dataclass(kw_only=True, slots=True)
class ServerSync(Sync, ABC):
    """A strategy whose weights are held by server ranks; `serve` says what they wait for."""

    requires: ClassVar[frozenset[str]] = frozenset({"p2p", "split", "servers"})
    updates: ClassVar = "servers"

    servers: int = 1
    """Server ranks, over which the weights are cut; they come on top of the workers."""
    _shards: Shards = field(init=False, repr=False)
    _events: list[dict[str, int]] = field(init=False, repr=False, default_factory=list)
    """The gradients that this server applied one by one: whose, and how many updates old its weights were."""

    def __post_init__(self) -> None:
        check(self.servers >= 1, f"servers must be at least 1, got {self.servers}")

    def num_servers(self) -> int:
        return self.servers

    def start(self, replica: Replica, comm: Comm) -> None:
        comm.broadcast_(replica.params)
        self._shards = Shards(replica, comm, self.servers, lockstep=self.lockstep)

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        self._shards.send(comm, PUSH)
        self._shards.receive(comm)

    @abstractmethod
    def serve(self, replica: Replica, comm: Comm) -> None: ...

    def finish(self, replica: Replica, comm: Comm) -> None:
        self.settle(replica, comm)
        self._shards.send(comm, DONE)

    def events(self) -> list[dict[str, int]]:
        return self._events

    def notes(self) -> dict[str, float]:
        """Return the mean and maximum staleness of the gradients, in updates."""
        ages = [event["staleness"] for event in self._events]
        if not ages:
            return {}
        return {"updates": len(ages), "staleness_mean": sum(ages) / len(ages), "staleness_max": max(ages)}

    def moments(self, replica: Replica, comm: Comm) -> Moments:
        self._shards.send(comm, STATE)
        return self._shards.receive_state(comm) if comm.rank == 0 else replica.update.moments()
