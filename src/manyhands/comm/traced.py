"""Measure by wrapping: bytes, messages and seconds of every call, for any strategy."""

from collections.abc import Callable, Iterable
from typing import final

import torch
from torch import Tensor

from manyhands.comm.base import ANY, Comm
from manyhands.comm.spans import Spans


@final
class TracedComm(Comm):
    """Count the bytes and messages that this rank sends through `inner`, and the seconds of each call.

    Bytes are those that an algorithm with the least traffic must send: an all-reduce of n bytes among p ranks counts
    2 (p-1)/p n on each rank. Every call but `recv`, whose sender has counted it, is one message.
    """

    def __init__(self, inner: Comm, spans: Spans | None = None) -> None:
        self.inner = inner
        self.spans = spans or Spans()
        self.rank, self.size, self.features = inner.rank, inner.size, inner.features
        self.clock = inner.clock
        self.forget()

    def forget(self) -> None:
        """Set all counts and times to zero."""
        self.bytes_sent = self.messages = 0
        self.collective_s: list[float] = []
        """Seconds of each collective call; entry n is the same call on every rank."""
        self.p2p_s = 0.0

    def absorb(self, other: "TracedComm") -> None:
        """Add what another tracer of this rank has counted, and let it start anew."""
        self.bytes_sent += other.bytes_sent
        self.messages += other.messages
        self.collective_s += other.collective_s
        self.p2p_s += other.p2p_s
        other.forget()

    def all_reduce_(self, t: Tensor) -> None:
        start = self._begin(t, 2 * t.nbytes * (self.size - 1) // self.size)
        self.inner.all_reduce_(t)
        self.collective_s.append(self._end("all-reduce", start))

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Time only the wait at the end, since the caller computes until then."""
        self._begin(t, 2 * t.nbytes * (self.size - 1) // self.size)
        end = self.inner.begin_all_reduce_(t)

        def end_and_note() -> None:
            start = self.clock()
            end()
            self.collective_s.append(self._end("all-reduce (end)", start))

        return end_and_note

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        start = self._begin(t, 0 if self.rank == root else t.nbytes)
        self.inner.reduce_(t, root)
        self.collective_s.append(self._end("reduce", start))

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        start = self._begin(t, t.nbytes * (self.size - 1) if self.rank == root else 0)
        self.inner.broadcast_(t, root)
        self.collective_s.append(self._end("broadcast", start))

    def all_gather(self, t: Tensor) -> Tensor:
        start = self._begin(t, t.nbytes * (self.size - 1))
        stacked = self.inner.all_gather(t)
        self.collective_s.append(self._end("all-gather", start))
        return stacked

    def reduce_scatter(self, t: Tensor) -> Tensor:
        start = self._begin(t, t.nbytes * (self.size - 1) // self.size)
        row = self.inner.reduce_scatter(t)
        self.collective_s.append(self._end("reduce-scatter", start))
        return row

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        start = self._begin(t, t.nbytes)
        self.inner.send(t, to, tag)
        self.p2p_s += self._end("send", start)

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        start = self.clock()
        sender = self.inner.recv(t, source, tag)
        self.p2p_s += self._end("recv", start)
        return sender

    def barrier(self) -> None:
        start = self.clock()
        self.inner.barrier()
        self.collective_s.append(self._end("barrier", start))

    def split(self, color: int) -> Comm:
        """Return a part of `inner`, which is not traced."""
        return self.inner.split(color)

    def add(self, parts: Iterable[Tensor]) -> Tensor:
        return self.inner.add(parts)

    def _begin(self, t: Tensor, num_bytes: int) -> float:
        if self.size > 1:
            self.bytes_sent += num_bytes
            self.messages += 1
            if t.is_cuda:  # queued kernels are compute, not communication
                torch.cuda.synchronize(t.device)
        return self.clock()

    def _end(self, name: str, start: float) -> float:
        """Record the span of a call that began at `start`; return its seconds."""
        now = self.clock()
        self.spans.add(name, "comm", start, now)
        return now - start
