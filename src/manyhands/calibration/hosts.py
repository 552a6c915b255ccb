"""By how much the clocks of a calibration's hosts differ."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from manyhands.comm import Comm

PINGS = 50
"""Round trips to measure a clock with; the shortest counts."""


def clock_lead_s(comm: Comm) -> float:
    """Return by how much rank 0's clock is ahead of this rank's (Cristian 1989)."""
    lead_s = 0.0
    for rank in range(1, comm.size):
        if comm.rank == 0:
            _answer(comm, rank)
        elif comm.rank == rank:
            lead_s = _ask(comm)
        comm.barrier()
    return lead_s


def shifted(calls: Sequence[dict[str, Any]], lead_s: float) -> list[dict[str, Any]]:
    """Return calls with their stamps on rank 0's clock; a stamp of 0 stays, since another rank's counts."""
    return [
        {**call, "stamps": [tuple(t + lead_s if t else t for t in stamp) for stamp in call["stamps"]]} for call in calls
    ]


def _ask(comm: Comm) -> float:
    """Ask rank 0 for its time, which it reads in the middle between question and answer."""
    tries = []
    now = torch.zeros(1, dtype=torch.float64)
    for _ in range(PINGS):
        sent_s = time.perf_counter()
        comm.send(now, to=0)
        comm.recv(now, source=0)
        answered_s = time.perf_counter()
        tries.append((answered_s - sent_s, float(now) - (sent_s + answered_s) / 2))
    return min(tries)[1]


def _answer(comm: Comm, rank: int) -> None:
    now = torch.zeros(1, dtype=torch.float64)
    for _ in range(PINGS):
        comm.recv(now, source=rank)
        now[0] = time.perf_counter()
        comm.send(now, to=rank)
