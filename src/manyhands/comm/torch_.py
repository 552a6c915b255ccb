"""Ranks as processes joined by torch.distributed: gloo over TCP, and NCCL between GPUs.

The groups are made without torch's process-wide default group: a process may belong to several worlds, and a world on
a single host listens on the loopback interface only. Between hosts, a rank listens at the address from which it reaches
the others, or at the interfaces that the user names: a host's own name often resolves to loopback there.

Gloo adds in an order that depends on the number of ranks and the length of the tensor only, so a sum has the same bits
in every run and on every rank. NCCL promises the same for one machine and one version.
"""

import os
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, final

import torch
from torch import Tensor, distributed

from manyhands.comm.base import ANY, Comm, stack_of
from manyhands.comm.texts import gather_texts
from manyhands.errors import ManyhandsError

dist: Any = distributed  # not all that it exports is in its stubs

Place = str | tuple[str, ...]
"""Where a rank listens: an address of its host, or interfaces."""
LOOPBACK = "127.0.0.1"
NO_GPU = "none"
START_S = 300.0
"""How long the ranks may take to find each other."""
PATIENCE = timedelta(days=7)
"""How long a call waits for a slow rank; one that has died is noticed by its closed connection."""
EAGER_BYTES = 1 << 20
"""Unread messages to one rank that a sender may leave behind, in bytes; beyond that it waits for the receiver."""
EAGER_MESSAGES = 64
"""The same limit as a number of messages."""


class PeerLost(ManyhandsError):
    """The connection to another rank broke, most likely because that rank failed."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error of the transport into `PeerLost`; any other error is passed on."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            raise PeerLost(f"the connection to another rank broke: {str(error).splitlines()[0]}") from error
        raise


def listen(host: str = LOOPBACK) -> socket.socket:
    """Open a free port for rank 0 to listen on; while it is open, no other process can take it."""
    return socket.create_server((host, 0))


def address_of(listener: socket.socket) -> str:
    """Return the listener's address as `host:port`."""
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is a loopback one, which no other host can reach."""
    return host in ("localhost", "::1", "[::1]") or host.startswith("127.")


def connect(
    address: str,
    rank: int,
    size: int,
    device: str = "cpu",
    listener: socket.socket | None = None,
    *,
    here: str = "",
    interfaces: str = "",
) -> "TorchComm":
    """Join the ranks that meet at `host:port`, where rank 0 listens: with `listener`, or by opening the port itself.

    Args:
        here: the address at which other hosts reach this one; by default, that of the route to rank 0's host.
        interfaces: network interfaces to listen on between hosts instead, such as `eth0` or `ib0,ib1`.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if rank == 0 and listener is None:
        listener = socket.create_server((host if is_loopback(host) else "", int(port)))
    options = {"master_listen_fd": listener.detach()} if rank == 0 and listener is not None else {}
    with explained():
        store = dist.TCPStore(
            host, int(port), size, rank == 0, timedelta(seconds=START_S), wait_for_workers=False, **options
        )
        at = _listening_place(store, rank, size, host, here, interfaces)
        return TorchComm(store, rank, size, device=device, at=at)


@cache
def world(host: str, interfaces: str = "") -> "TorchComm":
    """Return the comm of all ranks that torchrun started, whose meeting point is `host`; a process has one."""
    from torch.distributed.rendezvous import rendezvous

    with explained():
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=START_S)))
        return TorchComm(store, rank, size, at=_listening_place(store, rank, size, host, "", interfaces))


def own_address(peer: str) -> str:
    """Return the address of this host on its route to another host; no packet is sent."""
    family, kind, protocol, _, place = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


@final
class TorchComm(Comm):
    """A gloo group, with an NCCL group beside it where every rank has a GPU to itself.

    NCCL refuses ranks that share a GPU; their tensors travel through host memory, as point-to-point messages always do.
    """

    features = frozenset({"p2p", "any-source", "split", "servers"})

    def __init__(self, store: Any, rank: int, size: int, *, device: str = "cpu", at: Place = LOOPBACK) -> None:
        """Connect to the other ranks, whose addresses are exchanged through the store."""
        self.rank, self.size = rank, size
        self._store, self._device, self._place = store, device, at
        self._gloo = _gloo(dist.PrefixStore("gloo", store), rank, size, at)
        self._nccl: Any = None
        if self._have_own_gpus():
            self._nccl = _nccl(dist.PrefixStore("nccl", store), rank, size)
        self._num_splits = 0
        self._own_mail: dict[int, deque[Tensor]] = defaultdict(deque)
        self._unread: dict[tuple[int, int], deque[tuple[Any, Tensor]]] = defaultdict(deque)

    def all_reduce_(self, t: Tensor) -> None:
        self.begin_all_reduce_(t)()

    @explained()
    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Begin to sum; gloo and NCCL run in background threads."""
        group, here = self._at(t)
        work = group.allreduce([here])

        def end() -> None:
            with explained():
                self._end(work, here, t)

        return end

    @explained()
    def reduce_(self, t: Tensor, root: int = 0) -> None:
        group, here = self._at(t)
        self._end(group.reduce(here, root), here, t)

    @explained()
    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        group, here = self._at(t)
        self._end(group.broadcast(here, root), here, t)

    @explained()
    def all_gather(self, t: Tensor) -> Tensor:
        group, here = self._at(t)
        stacked = stack_of(here, self.size)
        self._end(group._allgather_base(stacked.view(-1), here.view(-1)), here, here)
        return stacked.to(t.device)

    @explained()
    def reduce_scatter(self, t: Tensor) -> Tensor:
        group, here = self._at(t)
        row = torch.empty_like(here[0])
        self._end(group._reduce_scatter_base(row.view(-1), here.view(-1)), here, here)
        return row.to(t.device)

    @explained()
    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Send a copy of a small message in the background, since gloo waits until a message is received."""
        if to == self.rank:
            self._own_mail[tag].append(t.clone())
            return
        unread = self._unread[to, tag]
        copy = t.cpu() if t.is_cuda or t.nbytes > EAGER_BYTES else t.clone()
        unread.append((self._gloo.send([copy], to, tag), copy))
        while len(unread) > EAGER_MESSAGES or sum(message.nbytes for _, message in unread) > EAGER_BYTES:
            unread.popleft()[0].wait(PATIENCE)

    @explained()
    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        if source in (ANY, self.rank) and self._own_mail[tag]:
            t.copy_(self._own_mail[tag].popleft())
            return self.rank
        here = t.cpu()
        work = self._gloo.recv_anysource([here], tag) if source == ANY else self._gloo.recv([here], source, tag)
        self._end(work, here, t)
        return int(work._source_rank()) if source == ANY else source

    @explained()
    def barrier(self) -> None:
        self._gloo.barrier().wait()

    @explained()
    def split(self, color: int, device: str = "") -> "TorchComm":
        colors = self.all_gather(torch.tensor(color)).tolist()
        members = [rank for rank, c in enumerate(colors) if c == color]
        self._num_splits += 1
        part = dist.PrefixStore(f"split-{self._num_splits}-{members[0]}", self._store)
        device = device or self._device
        return TorchComm(part, members.index(self.rank), len(members), device=device, at=self._place)

    def on(self, device: str) -> "TorchComm":
        """Return a comm of the same ranks for tensors on `device`, which may be another one on every rank."""
        unchanged = self.all_gather(torch.tensor(device == self._device)).all()
        return self if unchanged else self.split(0, device)

    def abort(self, status: int) -> None:
        """End this process at once; the others notice its closed connections, or ask `aborted`."""
        with suppress(RuntimeError):  # the process that keeps the store may be gone
            self._store.set("aborted", str(self.rank))
        os._exit(status)

    def aborted(self) -> bool:
        """Return whether a rank has aborted; a rank that waits for a message from any rank would not notice."""
        with suppress(RuntimeError):
            return bool(self._store.check(["aborted"]))
        return False

    def reachable(self) -> bool:
        """Return whether the process that keeps the store still answers."""
        with suppress(RuntimeError):
            self._store.check(["aborted"])
            return True
        return False

    def close(self) -> None:
        """Wait for the other ranks, and close the connections."""
        with suppress(PeerLost):  # a rank that has left already had done its work
            self.barrier()
        self._unread.clear()
        if self._nccl is not None:
            self._nccl.shutdown()
        self._gloo = self._nccl = self._store = None

    def _at(self, t: Tensor) -> tuple[Any, Tensor]:
        """Return the group that moves `t`, and `t` or its copy in host memory."""
        assert t.is_contiguous()
        return (self._nccl, t) if t.is_cuda and self._nccl is not None else (self._gloo, t.cpu())

    def _end(self, work: Any, here: Tensor, t: Tensor) -> None:
        """Wait, and copy the result to the device of `t`; on the CPU `here` is `t` itself."""
        if here.is_cuda:  # NCCL's wait only queues the work; callers that measure or read need it done
            work.wait()
            torch.cuda.current_stream(here.device).synchronize()
        else:  # without a time-out of its own, a message has that of the start
            work.wait(PATIENCE)
        if here is not t:
            t.copy_(here)

    def _have_own_gpus(self) -> bool:
        """Return whether every rank computes on a GPU, and no two on the same; a collective call."""
        cuda = self._device.startswith("cuda")
        gpu = str(torch.cuda.get_device_properties(torch.device(self._device)).uuid) if cuda else NO_GPU
        gpus = set(gather_texts(self, gpu))
        return len(gpus) == self.size and NO_GPU not in gpus


def _listening_place(store: Any, rank: int, size: int, host: str, here: str, interfaces: str) -> Place:
    """Return the place at which the other ranks can reach this one.

    On rank 0's host, the host's name may resolve to loopback; then the route to a rank on another host is taken.
    """
    if is_loopback(host):
        return LOOPBACK
    address = here or own_address(host)
    store.set(f"address-{rank}", address)
    if interfaces:
        return tuple(interfaces.split(","))
    if is_loopback(address):
        addresses = (store.get(f"address-{other}").decode() for other in range(size))
        elsewhere = next((other for other in addresses if not is_loopback(other)), None)
        return own_address(elsewhere) if elsewhere else LOOPBACK
    return address


def _gloo(store: Any, rank: int, size: int, at: Place) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = (
        [gloo.create_device(hostname=at)] if isinstance(at, str) else [gloo.create_device(interface=i) for i in at]
    )
    options._timeout = timedelta(seconds=START_S)
    group = gloo(store, rank, size, options)
    group._set_default_timeout(PATIENCE)
    return group


def _nccl(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    return dist.ProcessGroupNCCL(store, rank, size, options)
