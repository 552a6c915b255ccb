"""Time the calls of a comm between its ranks, for messages from 0 bytes to many megabytes.

Before each call every rank writes its tensor, as a backward pass does, and one rank, in turn, comes late: in a run the
others have gone to sleep when the last one comes, and must be woken.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.model.host import BURST
from manyhands.record.calibration import CallTimes

SIZES = (0, *(8**k for k in range(1, 9)))
"""Bytes of the tensors: 8 B to 16 MB."""
MOST_BYTES = 2**24
"""Bytes that a rank may hold of all ranks' tensors together."""
SMALL, SMALL_REPEATS = 2**16, 5
"""Calls of fewer bytes are so short that each round repeats them."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 60
LATE_S = 3e-4
"""By how much one rank comes late: time enough for the others to sleep."""

Stamp = tuple[float, float]
"""When this rank began and ended a call, on the host's clock; 0 where another rank's stamp counts."""
GoOn = Callable[[float], bool]
"""Takes the share that is done, and returns the same decision on every rank: whether to go on."""


@dataclass(frozen=True, eq=False)
class SizedCall:
    """A call with a tensor of one size."""

    call: str
    num_bytes: int
    tensor: Tensor
    make: Callable[[Tensor], Stamp]
    always_late: int | None = None
    """The rank that comes late each time, so that another waits for its message; None for all in turn."""


def time_calls(comm: Comm, seconds: float, go_on: GoOn, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Make every call with every size in turn for about `seconds`; return this rank's stamps."""
    cases = _affordable(comm, list(_cases(comm, sizes)), seconds / LEAST_ROUNDS)
    stamps: dict[SizedCall, list[Stamp]] = {case: [] for case in cases}
    began_s = time.perf_counter()
    for turn in count():
        spent = (time.perf_counter() - began_s) / seconds
        enough = (spent >= 1 and turn >= LEAST_ROUNDS) or turn >= MOST_ROUNDS
        if not go_on(1.0 if enough else min(spent, 0.99)):
            break
        for case in cases:
            for repeat in range(SMALL_REPEATS if case.num_bytes < SMALL else 1):
                stamps[case].append(_time(comm, case, turn + repeat))
    return [{"call": case.call, "num_bytes": case.num_bytes, "stamps": stamps[case]} for case in cases]


def _affordable(comm: Comm, cases: list[SizedCall], round_s: float) -> list[SizedCall]:
    """Make each call once, the smallest first, which also makes buffers and connections; leave out the large ones that
    a slow link has no time for in a round. Those take as much time per byte as the largest that is kept."""
    kept = set[SizedCall]()
    began_s = time.perf_counter()
    for case in sorted(cases, key=lambda case: case.num_bytes):
        _time(comm, case, 0)
        spent = torch.tensor([time.perf_counter() - began_s], dtype=torch.float64)
        comm.broadcast_(spent)
        if case.num_bytes > SMALL and float(spent) > round_s:
            break
        kept.add(case)
    return [case for case in cases if case in kept]


def joined_calls(of_ranks: Sequence[Sequence[dict[str, Any]]]) -> list[CallTimes]:
    """Join the ranks' stamps: a call takes from the last rank's beginning to the last rank's end."""
    times = []
    for same in zip(*of_ranks, strict=True):
        turns = zip(*(call["stamps"] for call in same), strict=True)
        us = [round(1e6 * (max(end for _, end in turn) - max(begun for begun, _ in turn)), 3) for turn in turns]
        if us:
            times.append(CallTimes(call=same[0]["call"], ranks=len(of_ranks), num_bytes=same[0]["num_bytes"], us=us))
    return times


def _time(comm: Comm, case: SizedCall, turn: int) -> Stamp:
    case.tensor.fill_(1.0)
    comm.barrier()
    if comm.rank == (turn % comm.size if case.always_late is None else case.always_late):
        until_s = time.perf_counter() + LATE_S
        while time.perf_counter() < until_s:
            pass
    return case.make(case.tensor)


def _cases(comm: Comm, sizes: Sequence[int]) -> Iterable[SizedCall]:
    whole: dict[str, Callable[[Tensor], Any]] = {
        "all-reduce": comm.all_reduce_,
        "reduce": comm.reduce_,
        "broadcast": comm.broadcast_,
    }
    yield SizedCall("barrier", 0, torch.empty(0), _stamped(lambda t: comm.barrier()))
    for size in sorted(sizes, reverse=True):  # small ones last: MPI may notice a large one late
        length = size // torch.float32.itemsize
        for call, make in whole.items():
            yield SizedCall(call, size, torch.empty(length), _stamped(make))
        yield SizedCall("send", size, torch.empty(length), lambda t: _ping_pong(comm, t), 0)
        if size * BURST <= MOST_BYTES:
            yield SizedCall("stream", size, torch.empty(length), lambda t: _stream(comm, t), 0)
        if size * comm.size <= MOST_BYTES:
            yield SizedCall("all-gather", size, torch.empty(length), _stamped(comm.all_gather))
    for rows in sorted({-(-size // (torch.float32.itemsize * comm.size)) for size in sizes}):
        t = torch.empty(comm.size, rows)
        yield SizedCall("reduce-scatter", t.nbytes, t, _stamped(comm.reduce_scatter))


def _stamped(make: Callable[[Tensor], Any]) -> Callable[[Tensor], Stamp]:
    def stamped(t: Tensor) -> Stamp:
        begun_s = time.perf_counter()
        make(t)
        return begun_s, time.perf_counter()

    return stamped


def _ping_pong(comm: Comm, t: Tensor) -> Stamp:
    """Send a message from rank 0 to rank 1 and back; half of that is one message's time."""
    begun_s = time.perf_counter()
    if comm.rank == 0:
        comm.send(t, to=1)
        comm.recv(t, source=1)
        return begun_s, (begun_s + time.perf_counter()) / 2
    if comm.rank == 1:
        comm.recv(t, source=0)
        comm.send(t, to=0)
    return 0.0, 0.0


def _stream(comm: Comm, t: Tensor) -> Stamp:
    """Send messages from rank 0 to rank 1, one right after the other."""
    begun_s = time.perf_counter()
    if comm.rank == 0:
        for _ in range(BURST):
            comm.send(t, to=1)
        return begun_s, 0.0
    if comm.rank == 1:
        for _ in range(BURST):
            comm.recv(t, source=0)
        return 0.0, time.perf_counter()
    return 0.0, 0.0
