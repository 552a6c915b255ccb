"""Ranks as processes joined by torch.distributed: gloo over TCP, and NCCL between GPUs.

The groups are made one by one, without torch's process-wide default group: a process may belong to several worlds, and
a world on this host alone listens on the loopback interface alone. Between hosts, a rank listens where the others are
reached from, or at the interfaces that the user names: what a host calls itself often stands for loopback there.

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
"""Messages to one rank that wait there unread are kept up to this size; a larger one is waited for."""
EAGER_MESSAGES = 64
"""And up to so many."""


class PeerLost(ManyhandsError):
    """The connection to another rank broke, most likely since that rank has failed."""


def listen(host: str = LOOPBACK) -> socket.socket:
    """Open a port of the system's choice for rank 0 to be found at: no other process can take it meanwhile."""
    return socket.create_server((host, 0))


def address_of(listener: socket.socket) -> str:
    """Return where the listener is found, as `host:port`."""
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Tell whether a host's name or address means this machine, and no other can reach it."""
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
        here: the address of this host that others reach; found out if it is not given.
        interfaces: what to listen on between hosts instead, as `eth0` or `ib0,ib1`.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if rank == 0 and listener is None:
        listener = socket.create_server((host if is_loopback(host) else "", int(port)))
    own = {"master_listen_fd": listener.detach()} if rank == 0 and listener is not None else {}
    with explained():
        store = dist.TCPStore(
            host, int(port), size, rank == 0, timedelta(seconds=START_S), wait_for_workers=False, **own
        )
        at = _listening_place(store, rank, size, host, here, interfaces)
        return TorchComm(store, rank, size, device=device, at=at)


@cache
def world(host: str, interfaces: str = "") -> "TorchComm":
    """Return the comm of all ranks that torchrun started, which meet at this host; a process has one."""
    from torch.distributed.rendezvous import rendezvous

    with explained():
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=START_S)))
        return TorchComm(store, rank, size, at=_listening_place(store, rank, size, host, "", interfaces))


def own_address(peer: str) -> str:
    """Return the address of this host that another host sees; to find it, no packet is sent."""
    family, kind, protocol, _, place = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def text_row(text: str, length: int = 64) -> Tensor:
    """Return a text as a tensor of so many bytes, cut or filled up with blanks, as ranks exchange it."""
    return torch.tensor(list(text.encode()[:length].ljust(length)), dtype=torch.uint8)


@final
class TorchComm(Comm):
    """A gloo group, with an NCCL group beside it where every rank has a GPU of its own.

    NCCL refuses ranks that share a GPU; their tensors travel through host memory, as messages to one rank always do.
    """

    features = frozenset({"p2p", "any-source", "split", "servers"})

    def __init__(self, store: Any, rank: int, size: int, *, device: str = "cpu", at: Place = LOOPBACK) -> None:
        """Meet the other ranks in the store, and listen for them at this place."""
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
        """Sum in place."""
        self.begin_all_reduce_(t)()

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Begin to sum; gloo and NCCL go on in threads of their own."""
        group, here = self._at(t)
        with explained():
            work = group.allreduce([here])

        def end() -> None:
            self._end(work, here, t)

        return end

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Sum at the root."""
        group, here = self._at(t)
        with explained():
            work = group.reduce(here, root)
        self._end(work, here, t)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Copy the root's tensor."""
        group, here = self._at(t)
        with explained():
            work = group.broadcast(here, root)
        self._end(work, here, t)

    def all_gather(self, t: Tensor) -> Tensor:
        """Stack everybody's tensor."""
        group, here = self._at(t)
        stacked = stack_of(here, self.size)
        with explained():
            work = group._allgather_base(stacked.view(-1), here.view(-1))
        self._end(work, here, here)
        return stacked.to(t.device)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Sum and cut."""
        group, here = self._at(t)
        row = torch.empty_like(here[0])
        with explained():
            work = group._reduce_scatter_base(row.view(-1), here.view(-1))
        self._end(work, here, here)
        return row.to(t.device)

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Send; gloo waits until it is received, so a small message is copied and left to itself."""
        if to == self.rank:
            self._own_mail[tag].append(t.clone())
            return
        unread = self._unread[to, tag]
        copy = t.cpu() if t.is_cuda or t.nbytes > EAGER_BYTES else t.clone()
        with explained():
            unread.append((self._gloo.send([copy], to, tag), copy))
            while len(unread) > EAGER_MESSAGES or sum(message.nbytes for _, message in unread) > EAGER_BYTES:
                unread.popleft()[0].wait(PATIENCE)

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Wait for the message."""
        if source in (ANY, self.rank) and self._own_mail[tag]:
            t.copy_(self._own_mail[tag].popleft())
            return self.rank
        here = t.cpu()
        with explained():
            work = self._gloo.recv_anysource([here], tag) if source == ANY else self._gloo.recv([here], source, tag)
        self._end(work, here, t)
        return int(work._source_rank()) if source == ANY else source

    def barrier(self) -> None:
        """Return when every rank is here."""
        with explained():
            self._gloo.barrier().wait()

    def split(self, color: int) -> "TorchComm":
        """Let the ranks of one color meet in a part of the store that is theirs."""
        return self._part(color, self._device)

    def on(self, device: str) -> "TorchComm":
        """Return a comm of the same ranks, each of which names the device its tensors are on."""
        kept = self.all_gather(torch.tensor(device == self._device)).all()
        return self if kept else self._part(0, device)

    def _part(self, color: int, device: str) -> "TorchComm":
        colors = self.all_gather(torch.tensor(color)).tolist()
        members = [rank for rank, c in enumerate(colors) if c == color]
        self._num_splits += 1
        part = dist.PrefixStore(f"split-{self._num_splits}-{members[0]}", self._store)
        with explained():
            return TorchComm(part, members.index(self.rank), len(members), device=device, at=self._place)

    def abort(self, status: int) -> None:
        """End this process at once; the others see its connections close, or ask whether one has `aborted`."""
        with suppress(RuntimeError):  # whoever keeps the store may be gone
            self._store.set("aborted", str(self.rank))
        os._exit(status)

    def aborted(self) -> bool:
        """Tell whether a rank has aborted, as one that waits for a message from anybody cannot see otherwise."""
        try:
            return bool(self._store.check(["aborted"]))
        except RuntimeError:
            return False

    def reachable(self) -> bool:
        """Tell whether whoever keeps the store still answers."""
        try:
            self._store.check(["aborted"])
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Wait for the others, and let the connections go; one that has gone already had done its work."""
        with suppress(PeerLost):
            self.barrier()
        self._unread.clear()
        if self._nccl is not None:
            self._nccl.shutdown()
        self._gloo = self._nccl = self._store = None

    def _at(self, t: Tensor) -> tuple[Any, Tensor]:
        """Return the group that moves this tensor, and the tensor as it takes it."""
        assert t.is_contiguous()
        return (self._nccl, t) if t.is_cuda and self._nccl is not None else (self._gloo, t.cpu())

    def _end(self, work: Any, here: Tensor, t: Tensor) -> None:
        """Wait, and bring the result to the device it belongs on; on the CPU `here` is `t` itself."""
        with explained():
            if here.is_cuda:  # NCCL's wait only queues; whoever measures or reads next needs it done
                work.wait()
                torch.cuda.current_stream(here.device).synchronize()
            else:  # a message has the time-out of the start unless it is told another
                work.wait(PATIENCE)
        if here is not t:
            t.copy_(here)

    def _have_own_gpus(self) -> bool:
        """Tell whether every rank of the group computes on a GPU, and no two on the same; all ranks must ask."""
        cuda = self._device.startswith("cuda")
        own = str(torch.cuda.get_device_properties(torch.device(self._device)).uuid) if cuda else NO_GPU
        gpus = {bytes(row.tolist()).decode().strip() for row in self.all_gather(text_row(own))}
        return len(gpus) == self.size and NO_GPU not in gpus


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error of the transport into `PeerLost`; any other is our own."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            raise PeerLost(f"the connection to another rank broke: {str(error).splitlines()[0]}") from error
        raise


def _listening_place(store: Any, rank: int, size: int, host: str, here: str, interfaces: str) -> Place:
    """Find where the others can reach this rank.

    On the meeting host itself its name may stand for loopback; the way to a rank elsewhere tells more.
    """
    if is_loopback(host):
        return LOOPBACK
    own = here or own_address(host)
    store.set(f"address-{rank}", own)
    if interfaces:
        return tuple(interfaces.split(","))
    if is_loopback(own):
        addresses = (store.get(f"address-{other}").decode() for other in range(size))
        elsewhere = next((address for address in addresses if not is_loopback(address)), None)
        return own_address(elsewhere) if elsewhere else LOOPBACK
    return own


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
