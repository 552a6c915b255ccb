"""Which hosts the ranks of a calibration are on, and by how much their clocks differ."""

import socket
import time
from collections.abc import Sequence
from typing import Any

import torch

from manyhands.calibration.calls import Stamp
from manyhands.comm import Comm

NAME_BYTES = 64
PINGS = 50
"""Of these the one counts that was answered soonest."""


def host_names(comm: Comm) -> list[str]:
    """Return every rank's host, on every rank."""
    name = socket.gethostname().encode()[:NAME_BYTES].ljust(NAME_BYTES)
    rows = comm.all_gather(torch.tensor(list(name), dtype=torch.uint8))
    return [bytes(row.tolist()).decode(errors="replace").strip() for row in rows]


def clock_lead_s(comm: Comm) -> float:
    """Return by how much the first rank's clock is ahead of this one's (Cristian 1989)."""
    lead_s = 0.0
    for rank in range(1, comm.size):
        if comm.rank == 0:
            _answer(comm, rank)
        elif comm.rank == rank:
            lead_s = _ask(comm)
        comm.barrier()
    return lead_s


def shifted(found: Sequence[dict[str, Any]], lead_s: float) -> list[dict[str, Any]]:
    """Put the stamps of calls on the first rank's clock; a stamp of 0 stays, since another rank's word counts."""

    def on_its_clock(stamp: Stamp) -> Stamp:
        begun_s, ended_s = (each + lead_s if each else each for each in stamp)
        return begun_s, ended_s

    return [{**call, "stamps": [on_its_clock(stamp) for stamp in call["stamps"]]} for call in found]


def _ask(comm: Comm) -> float:
    """Ask the first rank for its time; it was read in the middle between question and answer."""
    tries = []
    now = torch.zeros(1, dtype=torch.float64)
    for _ in range(PINGS):
        asked_s = time.perf_counter()
        comm.send(now, to=0)
        comm.recv(now, source=0)
        answered_s = time.perf_counter()
        tries.append((answered_s - asked_s, float(now) - (asked_s + answered_s) / 2))
    return min(tries)[1]


def _answer(comm: Comm, rank: int) -> None:
    now = torch.zeros(1, dtype=torch.float64)
    for _ in range(PINGS):
        comm.recv(now, source=rank)
        now[0] = time.perf_counter()
        comm.send(now, to=rank)
