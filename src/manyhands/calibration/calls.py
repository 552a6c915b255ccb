"""Time the calls of a comm between its ranks, for messages from nothing to many megabytes.

Before each call every rank writes its tensor, as a backward pass does, and one of them, in turn, comes late: in a run
the others have gone to sleep when the last one comes, and must be woken.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.model.host import BURST
from manyhands.record.calibration import CallTimes

SIZES = (0, *(8**k for k in range(1, 9)))
"""Bytes of the tensors: 8 B to 16 MB."""
MOST_BYTES = 2**24
"""What a rank may hold of all ranks' tensors together."""
SMALL, SMALL_REPEATS = 2**16, 5
"""Calls of fewer bytes are so short that they are made several times in each round."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 60
LATE_S = 3e-4
"""By how much one rank comes late: time enough for the others to sleep."""

Stamp = tuple[float, float]
"""When this rank began a call and when it was done, on the host's clock; 0 where another's word counts."""
GoOn = Callable[[float], bool]
"""Told the share that is done; tells whether to go on, on every rank the same."""


class SizedCall(NamedTuple):
    """A call with a tensor of one size."""

    call: str
    num_bytes: int
    tensor: Tensor
    make: Callable[[Tensor], Stamp]
    always_late: int | None = None
    """The rank that comes late each time, so that another waits for its message; None for each in turn."""


def time_calls(comm: Comm, seconds: float, go_on: GoOn, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Make every call with every size in turn until the time is up; return this rank's stamps."""
    cases = _affordable(comm, list(_cases(comm, sizes)), seconds / LEAST_ROUNDS)
    stamps: list[list[Stamp]] = [[] for _ in cases]
    began_s = time.perf_counter()
    for turn in count():
        spent = (time.perf_counter() - began_s) / seconds
        enough = (spent >= 1 and turn >= LEAST_ROUNDS) or turn >= MOST_ROUNDS
        if not go_on(1.0 if enough else min(spent, 0.99)):
            break
        for case, own in zip(cases, stamps, strict=True):
            for repeat in range(SMALL_REPEATS if case.num_bytes < SMALL else 1):
                own.append(_time(comm, case, turn + repeat))
    return [
        {"call": case.call, "num_bytes": case.num_bytes, "stamps": own} for case, own in zip(cases, stamps, strict=True)
    ]


def _affordable(comm: Comm, cases: list[SizedCall], round_s: float) -> list[SizedCall]:
    """Make each call once, which makes buffers and connections; leave out what a slow link has no time for in a round.

    The smallest come first. What is left out takes as long a byte as the largest that was kept.
    """
    kept = []
    began_s = time.perf_counter()
    for i in sorted(range(len(cases)), key=lambda i: cases[i].num_bytes):
        _time(comm, cases[i], 0)
        spent = torch.tensor([time.perf_counter() - began_s], dtype=torch.float64)
        comm.broadcast_(spent)
        if cases[i].num_bytes > SMALL and float(spent) > round_s:
            break
        kept.append(i)
    return [cases[i] for i in sorted(kept)]


def joined_calls(of_ranks: Sequence[Sequence[dict[str, Any]]]) -> list[CallTimes]:
    """Put the ranks' stamps together: a call takes from when the last one began it until the last one is done."""
    found = []
    for same in zip(*of_ranks, strict=True):
        turns = zip(*(own["stamps"] for own in same), strict=True)
        us = [1e6 * (max(end for _, end in stamps) - max(begun for begun, _ in stamps)) for stamps in turns]
        if us:
            call, num_bytes = same[0]["call"], same[0]["num_bytes"]
            found.append(CallTimes(call=call, ranks=len(of_ranks), num_bytes=num_bytes, us=[round(t, 3) for t in us]))
    return found


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
    for size in sorted(sizes, reverse=True):  # small ones last: of a large one MPI has not noticed that it has arrived
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
    """Let a message go from the first rank to the second and back; half of that is one message's time."""
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
    """Let messages go from the first rank to the second, one right after the other."""
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
