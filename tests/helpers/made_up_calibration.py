"""Calibrations of machines of which all is known: nothing in them was measured."""

from collections.abc import Callable, Sequence

import numpy as np

from manyhands.model.fit_comm import CommModel, cost_s
from manyhands.model.links import Link
from manyhands.record.calibration import Calibration, CallTimes, CommCosts, Contention, CoreTimes, RowTimes, TaskCosts

MADE = "2025-01-01 00:00:00"
ROWS = (1, 2, 8, 32)
LINK, GAMMA = Link(3e-6, 2.5e-10, 1e-6), 1.5e-10
CALLS = ("all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter", "send")
SIZES = (0, 8, 64, 512, 4096, 32768, 2**18, 2**21, 2**24)
WEIGHT_BYTES = 2**20
LOCK_US = {1: 1.5, 2: 1.5, 64: 1.5}
"""A lock that is handed on as fast among many; for two threads an operation each takes the link's α."""

Times = Callable[[float], Sequence[float]]


def affine(rows: float) -> list[float]:
    """Milliseconds that are the same each time: 2, and 0.5 a row."""
    return [2 + 0.5 * rows] * 40


def varying(rows: float) -> list[float]:
    """The same on average, from a half to one and a half times as much, in no order."""
    factors = np.random.default_rng(0).permutation(np.linspace(0.5, 1.5, 401))
    return [float(ms) for ms in (2 + 0.5 * rows) * factors]


def row_times(rows: int, compute: Times, serial_ms: float = 0.25, factor: float = 1.0) -> RowTimes:
    """Make the steps of one worker."""
    compute_ms = [factor * ms for ms in compute(rows)]
    return RowTimes(rows=rows, compute_ms=compute_ms, serial_ms=[factor * serial_ms] * len(compute_ms), block=4)


def call_times(model: CommModel, ranks: Sequence[int] = (2,), spread: float = 0.0, seed: int = 0) -> list[CallTimes]:
    """Make calls that take what the formulas say, but for a spread; in a stream each message adds the overhead."""
    random = np.random.default_rng(seed)

    def point(call: str, p: int, num_bytes: int, seconds: float) -> CallTimes:
        us = 1e6 * seconds * np.exp(spread * random.standard_normal(25))
        return CallTimes(call=call, ranks=p, num_bytes=num_bytes, us=[float(t) for t in us])

    found = []
    for p in ranks:
        found += [point(call, p, n, cost_s(model, call, p, n, LINK, GAMMA)) for call in CALLS for n in SIZES]
        found.append(point("barrier", p, 0, cost_s(model, "barrier", p, 0, LINK, GAMMA)))
        found += [point("stream", p, n, LINK.message_s(n) + 7 * LINK.busy_s(n)) for n in SIZES]
    return found


def comm(engine: str = "mpi", points: Sequence[CallTimes] = ()) -> CommCosts:
    """Make the costs of an engine, fitted perfectly."""
    model: CommModel = "slices" if engine == "threads" else "messages"
    return CommCosts(
        engine=engine,
        made=MADE,
        ranks=2,
        model=model,
        latency_us=1e6 * LINK.alpha_s,
        gigabyte_per_s=1e-9 / LINK.beta_s_per_byte,
        reduce_gigabyte_per_s=1e-9 / GAMMA,
        overhead_us=1e6 * LINK.overhead_s,
        duplex="full",
        error_pct=0.0,
        points=list(points) or call_times(model),
    )


def core_times(
    compute_us: dict[int, list[float]] | None = None,
    memory_us: dict[int, float] | None = None,
    lock_us: dict[int, float] | None = None,
) -> CoreTimes:
    """Make cores of which each takes as long as alone, unless told otherwise."""
    return CoreTimes(
        compute_us=compute_us or {1: [1000.0]},
        compute_flops=1e8,
        memory_us=memory_us or {1: 1000.0},
        lock_us=lock_us or LOCK_US,
    )


def calibration(
    compute: Times = affine, *, factor: float = 1.0, task: str = "mlp", engines: Sequence[str] = ("threads", "mpi")
) -> Calibration:
    """Make the calibration of a machine with two cores; two workers on it take `factor` times as long as one."""
    crowd = [
        Contention(
            engine=engine,
            task=task,
            ranks=2,
            rows=rows,
            compute_factor=factor,
            times=row_times(rows, compute, factor=factor),
            silent=row_times(rows, compute, factor=factor),
        )
        for engine in engines
        for rows in ROWS
    ]
    costs = TaskCosts(
        task=task,
        parameters=WEIGHT_BYTES // 4,
        weight_bytes=WEIGHT_BYTES,
        samples=1000,
        batch_size=16,
        flops_per_row=1e6,
        pass_operations=20,
        update_operations=1,
        made=MADE,
        points=[row_times(rows, compute) for rows in ROWS],
        touch_ms=[1e3 * WEIGHT_BYTES * GAMMA],
    )
    return Calibration(
        machine="nowhere, none, 2 cores",
        made=MADE,
        hardware={"host": "nowhere", "cpu": "none", "cores": 2},
        versions={"torch": "1", "python": "3"},
        tasks={task: costs},
        comms={engine: comm(engine) for engine in engines},
        contention=crowd,
        cores=core_times(),
    )
