"""Machines of which one knows what must come out: made-up calibrations, small outlines."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from manyhands.model.cluster import Cluster, LinkSpec
from manyhands.record.calibration import Calibration, CallTimes, CommCosts, Contention, CoreTimes, RowTimes, TaskCosts
from manyhands.record.simulation import CodecTimes
from manyhands.replica.meta import GradientReady, Outline

SAMPLES = 10_000
BATCH = 64
NUMEL = 235_146
ROWS = (1, 8, 64, 512)

OUTLINE = Outline(
    NUMEL, NUMEL, torch.float32, ((256, 784), (256,), (128, 256), (128,), (10, 128), (10,)),
    lambda: (GradientReady(0.6, 200_960, NUMEL), GradientReady(1.0, 0, 200_960)),
)  # fmt: skip
ETHERNET = Cluster(
    nodes=100_000, cores=1, between=LinkSpec(latency_us=15, gigabit_per_s=9.4, overhead_us=3), price_per_hour=3.6
)


def constant(rows: float) -> list[float]:
    """Milliseconds of forward and backward passes that all take the same: 1 ms, and 0.1 a row."""
    return [1 + 0.1 * rows] * 60


def varying(rows: float, *, share: float = 0.1) -> list[float]:
    """The same with an exponential tail."""
    tail = np.random.default_rng(int(rows)).exponential(share, 400)
    return [float(each) for each in (1 + 0.1 * rows) * (1 - share + tail)]


def calibration(
    times: Callable[[float], Sequence[float]] = constant,
    *,
    serial_ms: float = 0.25,
    factor: float = 1.0,
    adding: float = 10.0,
    error_pct: float = 0.0,
    task: str = "mlp",
) -> Calibration:
    """Make a calibration of a machine whose workers may slow each other down; `adding` is 1/γ in GB/s."""
    points = [_row_times(rows, times(rows), serial_ms) for rows in ROWS]
    crowd = [
        Contention(
            engine=engine,
            task=task,
            ranks=2,
            rows=point.rows,
            compute_factor=factor,
            times=crowded,
            silent=crowded,
        )
        for engine in ("threads", "mpi")
        for point in points
        for crowded in [_row_times(point.rows, [factor * each for each in point.compute_ms], factor * serial_ms)]
    ]
    costs = TaskCosts(
        task=task,
        parameters=NUMEL,
        weight_bytes=4 * NUMEL,
        samples=SAMPLES,
        batch_size=BATCH,
        flops_per_row=1e6,
        pass_operations=20,
        update_operations=1,
        made="2025-01-01 00:00:00",
        points=points,
        touch_ms=[4e-6 * NUMEL / adding],
    )
    return Calibration(
        machine="made up",
        made="2025-01-01 00:00:00",
        hardware={"host": "made up", "cpu": "none", "cores": 2},
        versions={"torch": "2"},
        tasks={task: costs},
        comms={engine: _comm(engine, adding, error_pct) for engine in ("threads", "mpi")},
        contention=crowd,
        cores=CoreTimes(compute_us={1: [1000.0]}, compute_flops=1e8, memory_us={1: 1000.0}, lock_us={1: 5.0, 2: 10.0}),
    )


def _row_times(rows: int, compute_ms: Sequence[float], serial_ms: float) -> RowTimes:
    return RowTimes(rows=rows, compute_ms=list(compute_ms), serial_ms=[serial_ms] * len(compute_ms), block=10)


def _comm(engine: str, adding: float, error_pct: float) -> CommCosts:
    """Make calls of 5 µs and 10 GB/s that vary not at all."""
    points = [
        CallTimes(call=call, ranks=2, num_bytes=num_bytes, us=[5 + num_bytes / 1e4] * 5)
        for call in ("all-reduce", "reduce", "broadcast", "all-gather", "send", "stream")
        for num_bytes in (0, 2**20)
    ]
    return CommCosts(
        engine=engine,
        made="2025-01-01 00:00:00",
        ranks=2,
        model="messages",
        latency_us=5,
        gigabyte_per_s=10,
        reduce_gigabyte_per_s=adding,
        overhead_us=1,
        duplex="full",
        error_pct=error_pct,
        points=points,
    )


CODEC = CodecTimes(code_bytes=100_000, encode_s=1e-3, decode_s=1e-4)


def network(task: str = "mlp") -> Any:
    """Stand in for a task's network."""
    return SimpleNamespace(
        config=SimpleNamespace(task=task, batch_size=BATCH),
        samples=SAMPLES,
        outline=lambda rows: OUTLINE,
        check_calibrated=lambda known: None,
        times_of=lambda codec: None if codec is None else CODEC,
    )
