"""Ranks as MPI processes, through mpi4py's buffer calls: raw memory, no pickle."""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from manyhands.comm.base import ANY, Comm, stack_of
from manyhands.errors import check

SETTLE_S = 1.0
"""How long messages may still take to arrive after the last barrier of all ranks."""


def world() -> "MPIComm":
    """Return the comm of all ranks that mpiexec started; this initialises MPI."""
    from mpi4py import MPI

    return MPIComm(MPI.COMM_WORLD)


@final
class MPIComm(Comm):
    """One thread's end of an MPI communicator; tensors on a GPU travel through host memory.

    A pending request and its buffer belong to the thread that made the request: no other may test or drop them.
    """

    features = frozenset({"p2p", "any-source", "split", "servers"})

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._begun: list[Any] = []
        self._sent: list[tuple[Any, Any]] = []
        self._own_mail: dict[int, deque[Tensor]] = defaultdict(deque)
        self._ends: list[MPIComm] = []

    def for_threads(self, count: int) -> "list[MPIComm]":
        """Return an end of this communicator for each of `count` threads that call MPI at the same time.

        The ends are kept as long as this comm: a message may still be under way when its thread has ended.
        """
        allowed = self._mpi.Query_thread() >= self._mpi.THREAD_MULTIPLE
        check(
            count == 1 or allowed,
            "engine hybrid needs an MPI library that all threads may call (MPI_THREAD_MULTIPLE), and this one does not "
            "allow it; use --engine mpi",
        )
        self._ends += [MPIComm(self._comm) for _ in range(count)]
        return self._ends[-count:]

    def all_reduce_(self, t: Tensor) -> None:
        host = t.cpu()
        self._comm.Allreduce(self._mpi.IN_PLACE, host.numpy())
        _back(host, t)

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Begin with MPI_Iallreduce; earlier requests are tested, since MPI makes progress only inside its calls."""
        host = t.cpu()
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, host.numpy())
        self._begun = [r for r in (*self._begun, request) if not r.Test()]

        def end() -> None:
            request.Wait()
            _back(host, t)

        return end

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        host = t.cpu()
        if self.rank == root:
            self._comm.Reduce(self._mpi.IN_PLACE, host.numpy(), root=root)
            _back(host, t)
        else:
            self._comm.Reduce(host.numpy(), None, root=root)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        host = t.cpu()
        self._comm.Bcast(host.numpy(), root=root)
        if self.rank != root:
            _back(host, t)

    def all_gather(self, t: Tensor) -> Tensor:
        host = t.cpu()
        stacked = stack_of(host, self.size)
        self._comm.Allgather(host.numpy(), stacked.numpy())
        return stacked.to(t.device)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        host = t.cpu()
        row = torch.empty_like(host[0])
        self._comm.Reduce_scatter_block(host.numpy(), row.numpy())
        return row.to(t.device)

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Send a copy with MPI_Isend, since MPI_Send may wait for the receiver; a message to this rank is kept here."""
        if to == self.rank:
            self._own_mail[tag].append(t.clone())
            return
        message = t.cpu().numpy().copy()
        request = self._comm.Isend(message, dest=to, tag=tag)
        self._sent = [(r, m) for r, m in (*self._sent, (request, message)) if not r.Test()]

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        if source in (ANY, self.rank) and self._own_mail[tag]:
            t.copy_(self._own_mail[tag].popleft())
            return self.rank
        host, status = t.cpu(), self._mpi.Status()
        self._comm.Recv(host.numpy(), self._mpi.ANY_SOURCE if source == ANY else source, tag, status)
        _back(host, t)
        return int(status.Get_source())

    def barrier(self) -> None:
        self._comm.Barrier()

    def split(self, color: int) -> "MPIComm":
        return MPIComm(self._comm.Split(color, self.rank))

    def settle(self) -> None:
        """Wait for all ranks, and free the requests of messages that arrived: MPI warns of pending ones at its end."""
        self._comm.Barrier()
        give_up = time.monotonic() + SETTLE_S
        for end in (self, *self._ends):
            while end._sent and time.monotonic() < give_up:  # a message that no rank receives is dropped
                end._sent = [(r, m) for r, m in end._sent if not r.Test()]

    def abort(self, status: int) -> None:
        """End every rank of the world at once."""
        self._mpi.COMM_WORLD.Abort(status)


def _back(host: Tensor, t: Tensor) -> None:
    """Copy the result to the device it came from; on the CPU `host` is `t` itself."""
    if host is not t:
        t.copy_(host)
