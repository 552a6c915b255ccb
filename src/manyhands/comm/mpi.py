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
"""How long messages that were sent may take to arrive after all ranks have met for the last time."""


def world() -> "MPIComm":
    """Return the comm of all ranks that mpiexec started; MPI is initialised here and nowhere else."""
    from mpi4py import MPI

    return MPIComm(MPI.COMM_WORLD)


@final
class MPIComm(Comm):
    """One thread's end of an MPI communicator; tensors on a GPU travel through host memory.

    A request under way, and the buffer it reads, belong to the thread that made it: no other may test or drop them.
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

        They are kept for as long as this one: a message may still be under way when its thread has ended.
        """
        allowed = self._mpi.Query_thread() >= self._mpi.THREAD_MULTIPLE
        check(
            count == 1 or allowed,
            "engine hybrid needs an MPI library whose threads may all call it (MPI_THREAD_MULTIPLE), and this one's "
            "may not; use --engine mpi",
        )
        self._ends += [MPIComm(self._comm) for _ in range(count)]
        return self._ends[-count:]

    def all_reduce_(self, t: Tensor) -> None:
        """Sum in place with MPI_Allreduce."""
        host = t.cpu()
        self._comm.Allreduce(self._mpi.IN_PLACE, host.numpy())
        _back(host, t)

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Begin with MPI_Iallreduce; MPI moves on only inside its calls, so those begun before are prodded."""
        host = t.cpu()
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, host.numpy())
        self._begun = [r for r in (*self._begun, request) if not r.Test()]

        def end() -> None:
            request.Wait()
            _back(host, t)

        return end

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Sum at the root with MPI_Reduce."""
        host = t.cpu()
        if self.rank == root:
            self._comm.Reduce(self._mpi.IN_PLACE, host.numpy(), root=root)
            _back(host, t)
        else:
            self._comm.Reduce(host.numpy(), None, root=root)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Copy the root's tensor with MPI_Bcast."""
        host = t.cpu()
        self._comm.Bcast(host.numpy(), root=root)
        if self.rank != root:
            _back(host, t)

    def all_gather(self, t: Tensor) -> Tensor:
        """Stack everybody's tensor with MPI_Allgather."""
        host = t.cpu()
        stacked = stack_of(host, self.size)
        self._comm.Allgather(host.numpy(), stacked.numpy())
        return stacked.to(t.device)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Sum and cut with MPI_Reduce_scatter_block."""
        host = t.cpu()
        row = torch.empty_like(host[0])
        self._comm.Reduce_scatter_block(host.numpy(), row.numpy())
        return row.to(t.device)

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Send a copy with MPI_Isend, since MPI_Send may wait for the receiver; one to oneself is kept here."""
        if to == self.rank:
            self._own_mail[tag].append(t.clone())
            return
        message = t.cpu().numpy().copy()
        request = self._comm.Isend(message, dest=to, tag=tag)
        self._sent = [(r, m) for r, m in (*self._sent, (request, message)) if not r.Test()]

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Receive with MPI_Recv."""
        if source in (ANY, self.rank) and self._own_mail[tag]:
            t.copy_(self._own_mail[tag].popleft())
            return self.rank
        host, status = t.cpu(), self._mpi.Status()
        self._comm.Recv(host.numpy(), self._mpi.ANY_SOURCE if source == ANY else source, tag, status)
        _back(host, t)
        return int(status.Get_source())

    def barrier(self) -> None:
        """Wait in MPI_Barrier."""
        self._comm.Barrier()

    def split(self, color: int) -> "MPIComm":
        """Cut with MPI_Comm_split."""
        return MPIComm(self._comm.Split(color, self.rank))

    def settle(self) -> None:
        """Wait for all ranks, and let go of the messages that have arrived; MPI complains of those at its end."""
        self._comm.Barrier()
        give_up = time.monotonic() + SETTLE_S
        for end in (self, *self._ends):
            while end._sent and time.monotonic() < give_up:  # what nobody takes is nobody's loss
                end._sent = [(r, m) for r, m in end._sent if not r.Test()]

    def abort(self, status: int) -> None:
        """End every rank of the world at once."""
        self._mpi.COMM_WORLD.Abort(status)


def _back(host: Tensor, t: Tensor) -> None:
    """Copy the result to the device it came from; on the CPU `host` is `t` itself."""
    if host is not t:
        t.copy_(host)
