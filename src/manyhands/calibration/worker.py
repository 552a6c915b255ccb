"""One rank's part in a calibration: time the calls between the ranks, then the task's steps."""

import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from manyhands.calibration.calls import SIZES, GoOn, time_calls
from manyhands.calibration.steps import time_steps
from manyhands.comm import Comm
from manyhands.comm.texts import gather_texts
from manyhands.machine.load import CoreMeter
from manyhands.record.run import Pulse
from manyhands.training.job import Job
from manyhands.training.watch import Watch

FINE = 1000
"""Steps of the progress that a rank shows."""
PINGS = 50
"""Round trips to measure a clock with; the shortest counts."""


class CalibrationAsk(NamedTuple):
    """What a rank is to measure, and for how long."""

    rows: list[int]
    """Of each rank."""
    steps_s: float
    calls_s: float
    """0 where the calls were timed on an earlier visit."""
    blocks: Sequence[int]
    """Steps of a block with each number of rows on an earlier visit; empty on the first."""


def calibrate_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Time calls and steps as one rank of `comm`; return this rank's times as plain JSON."""
    ask, meter = CalibrationAsk(**job.extra), CoreMeter()
    total_s = ask.calls_s + ask.steps_s
    stopped = False

    def follow(before_s: float, seconds: float) -> GoOn:
        def go_on(done: float) -> bool:
            nonlocal stopped
            decision = torch.tensor([0 if watch.stop_asked() else 1 if done < 1 else 2])
            comm.broadcast_(decision)
            stopped = stopped or int(decision) == 0
            if comm.rank == 0:
                watch.pulse(_pulse((before_s + done * seconds) / total_s))
            return int(decision) == 1

        return go_on

    hosts = gather_texts(comm, socket.gethostname())
    apart = len(set(hosts)) > 1
    calls, steps = [], []
    if ask.calls_s:
        lead_s = clock_lead_s(comm) if apart else 0.0
        calls = shifted(time_calls(comm, ask.calls_s, follow(0.0, ask.calls_s), SIZES), lead_s)
    if not stopped:
        lead_s = clock_lead_s(comm) if apart else 0.0
        steps = time_steps(comm, job, watch, ask.rows, ask.blocks, ask.steps_s, follow(ask.calls_s, ask.steps_s))
        steps = [{**point, "exchanges": shifted(point["exchanges"], lead_s)} for point in steps]
    return {
        "status": "interrupted" if stopped else "complete",
        "host": hosts[comm.rank],
        "use": meter.read(torch.get_num_threads()).to_json(),
        "calls": calls,
        "steps": steps,
    }


def _pulse(done: float) -> Pulse:
    nothing = dict.fromkeys(("loss", "samples_per_s", "eta_s", "compute_s", "comm_s", "wait_s"), 0.0)
    return Pulse(step=round(FINE * done), steps=FINE, epoch=0, epochs=0, accuracy=None, metrics={}, **nothing)


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
