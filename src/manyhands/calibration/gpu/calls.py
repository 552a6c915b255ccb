"""Copies between host and GPU, and the calls between GPUs: measured where there are several, by formula where not."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhands import launch
from manyhands.calibration.calls import Stamp, joined_calls
from manyhands.calibration.gpu.steps import synchronize
from manyhands.comm import Comm
from manyhands.comm.torch_ import address_of, connect, listen
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.model.cluster import READY_LINKS
from manyhands.model.fit_comm import TimedCall, fit_comm
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import CallTimes, CommCosts, CopyTimes
from manyhands.record.run import RunDir
from manyhands.tasks import Task
from manyhands.tasks.setup import device_of
from manyhands.training.job import Job
from manyhands.training.watch import Watch

ENGINE = "torch"
"""The engine whose ranks have a GPU each and talk by nccl."""
SIZES = (8, 2**12, 2**16, 2**20, 2**24)
"""Bytes of the tensors in calls."""
COPIES = (8, 2**12, 2**18, 2**22, 2**26)
"""Bytes of copies: 8 B to 64 MiB."""
REPEATS = 15
ADDED = 2**26
"""Bytes of the tensors whose sum tells how fast a GPU adds: more than its cache holds."""
FASTEST = 1e4
"""Gigabytes a second above which a time was too short to measure."""
FORMULA_ERROR_PCT = 40.0
"""Declared median error of a formula for calls that nobody measured: typical figures of a link are of no machine in
particular, and nccl changes algorithm and protocol with the size of a message."""


def time_copies(device: torch.device) -> list[CopyTimes]:
    """Time copies from pageable memory to the device and back, as a run makes them."""
    copies = []
    for size in COPIES:
        here = torch.ones(size // torch.float32.itemsize)
        there = here.to(device)
        to_device = _microseconds(lambda here=here: here.to(device, copy=True), device)  # type: ignore[misc]
        to_host = _microseconds(lambda there=there: there.to("cpu", copy=True), device)  # type: ignore[misc]
        copies.append(CopyTimes(num_bytes=size, to_device_us=to_device, to_host_us=to_host))
    return copies


def add_rate(device: torch.device) -> float:
    """Return the gigabytes that the device adds in a second."""
    a, b = (torch.ones(ADDED // torch.float32.itemsize, device=device) for _ in range(2))
    return min(FASTEST, 1e-3 * ADDED / max(1e-3, undisturbed(_microseconds(lambda: a.add_(b), device))))


def launch_us(device: torch.device) -> float:
    """Return the time of a call in a group of one rank, which has nobody to exchange with: to hand it over and wait."""
    listener = listen("127.0.0.1")
    comm = connect(address_of(listener), 0, 1, str(device), listener)
    try:
        t = torch.ones(SIZES[0] // torch.float32.itemsize, device=device)
        return undisturbed(_microseconds(lambda: comm.all_reduce_(t), device))
    finally:
        comm.close()


def _microseconds(operation: Callable[[], object], device: torch.device) -> list[float]:
    """Return the times of an operation and of waiting for the device; the first, which may set something up, is not
    counted."""
    times = []
    for _ in range(REPEATS + 1):
        synchronize(device)
        begun_s = time.perf_counter()
        operation()
        synchronize(device)
        times.append(round(1e6 * (time.perf_counter() - begun_s), 3))
    return times[1:]


def formula_costs(link: str, gigabyte_per_s: float, call_us: float, made: str) -> CommCosts:
    """Return the costs of calls over a predefined link, which nobody measured; the GPU adds `gigabyte_per_s`."""
    spec = READY_LINKS[link]
    return CommCosts(
        engine=ENGINE,
        made=made,
        formula=link,
        ranks=1,
        model="messages",
        latency_us=spec.latency_us,
        gigabyte_per_s=spec.gigabit_per_s / 8,
        reduce_gigabyte_per_s=gigabyte_per_s,
        overhead_us=spec.overhead_us,
        launch_us=call_us,
        duplex=spec.duplex,
        error_pct=FORMULA_ERROR_PCT,
        points=[],
    )


def measured_costs(
    config: RunConfig, task: Task, data: Dataset, num_ranks: Sequence[int], call_us: float, made: str
) -> CommCosts:
    """Time the calls between ranks that have a device each, and fit latency, bandwidth and adding to them."""
    points: list[CallTimes] = []
    for ranks in num_ranks:
        alike = config.model_copy(update={"engine": ENGINE, "workers": ranks})
        with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
            job = Job(alike, RunDir(Path(folder)), task=task, data=data)
            of_ranks = launch.make(ENGINE).launch(time_calls_of_rank, job, lambda pulse: None)
        points += joined_calls([rank["calls"] for rank in of_ranks])
    calls = [
        TimedCall(p.call, p.ranks, p.num_bytes, max(1e-9, 1e-6 * undisturbed(p.us) - 1e-6 * call_us)) for p in points
    ]
    fit = fit_comm("messages", calls)
    return CommCosts(
        engine=ENGINE,
        made=made,
        ranks=max(num_ranks),
        model="messages",
        latency_us=1e6 * fit.link.alpha_s,
        gigabyte_per_s=_rate(fit.link.beta_s_per_byte),
        reduce_gigabyte_per_s=_rate(fit.gamma_s_per_byte),
        overhead_us=0.0,
        launch_us=call_us,
        duplex="full" if fit.link.full_duplex else "half",
        error_pct=100 * fit.error,
        points=points,
    )


def _rate(seconds_per_byte: float) -> float:
    return min(FASTEST, 1e-9 / seconds_per_byte) if seconds_per_byte > 0 else FASTEST


def time_calls_of_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Time collective calls with tensors on this rank's device; return its stamps as plain JSON."""
    device = device_of(job.config, comm.rank)
    calls = []
    for size in SIZES:
        length = max(comm.size, size // torch.float32.itemsize) // comm.size * comm.size
        whole = torch.ones(length, device=device)
        rows = whole.view(comm.size, -1)
        for name, call, tensor in (
            ("all-reduce", comm.all_reduce_, whole),
            ("reduce", comm.reduce_, whole),
            ("broadcast", comm.broadcast_, whole),
            ("all-gather", comm.all_gather, rows[0]),
            ("reduce-scatter", comm.reduce_scatter, rows),
        ):
            stamps = [_stamp(comm, device, call, tensor) for _ in range(REPEATS + 1)][1:]
            calls.append({"call": name, "num_bytes": tensor.nbytes, "stamps": stamps})
    return {"status": "complete", "calls": calls}


def _stamp(comm: Comm, device: torch.device, call: Callable[[Tensor], object], tensor: Tensor) -> Stamp:
    tensor.fill_(1.0)
    synchronize(device)
    comm.barrier()
    begun_s = time.perf_counter()
    call(tensor)
    synchronize(device)
    return begun_s, time.perf_counter()
