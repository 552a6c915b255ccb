"""Measure this machine's GPUs in about a minute: a task's steps by rows, copies, and the calls between GPUs."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from manyhands.calibration.calibrate import CLOSING, Close, Progress, check_writable
from manyhands.calibration.counts import Counts, count
from manyhands.calibration.gpu.calls import ENGINE, add_rate, formula_costs, launch_us, measured_costs, time_copies
from manyhands.calibration.gpu.steps import RATE, GpuPoint, GpuTask, Passes, time_passes
from manyhands.errors import ManyhandsError, check, unknown
from manyhands.launch.environment import outer_world
from manyhands.machine import facts
from manyhands.machine.load import worst
from manyhands.measurement.budget import END_S, Clock
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import (
    Calibration,
    CommCosts,
    Contention,
    CoreTimes,
    RowTimes,
    TaskCosts,
    differences,
    machine_name,
    open_calibration,
)
from manyhands.record.files import alone_in, write_atomically
from manyhands.replica import Replica
from manyhands.replica.nested import moved
from manyhands.replica.traits import traits_of
from manyhands.request import absolute, resolve
from manyhands.run import preflight
from manyhands.tasks import load
from manyhands.tasks.load import check_not_importing
from manyhands.tasks.setup import device_of
from manyhands.training.plan import AT_END, Plan

LINK = "nvlink"
"""Link that joins the GPUs of a formula, unless another is named."""
GPU_LINKS = ("nvlink", "pcie")
ROUNDS, LEAST_ROUNDS = 5, 2
"""Rounds of a calibration; in each, every number of rows gets a run."""
VISIT_S = (0.1, 0.4)
"""The shortest and the longest that the steps of a run should take: a run flushes its meter often at its beginning,
which a shorter one would count for more than it is."""
JUMPS = 3
"""Numbers of micro-batches (1, 2, 4) after which a further one is a jump worth measuring."""
WAITING_SHARE = 0.5
"""Length of runs that wait for the GPU in each step, relative to those that do not."""
SLOW_S = 5e-3
"""Steps from which on a wait in each of them changes nothing that could be measured."""
ALONE: dict[str, Any] = {"compute_us": {1: [1.0]}, "compute_flops": 1.0, "memory_us": {1: 1.0}, "lock_us": {1: 1.0}}
"""Cores that do not slow each other down: every rank has its GPU to itself."""


class _GpuBench(NamedTuple):
    """A task to measure, ready to be run."""

    name: str
    gpu: GpuTask
    replica: Replica
    counts: Counts
    batch_size: int
    points: list[GpuPoint]


def calibrate_gpu(
    task_names: Sequence[str],
    *,
    path: Path,
    device: str = "cuda",
    link: str = "",
    budget_s: float = 60.0,
    spent_s: float = 0.0,
    close: Close | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Calibration:
    """Measure tasks on one GPU, and the calls between GPUs if there are several; add the times to the file, and return
    it.

    With one GPU, calls follow a formula for `link`: nvlink or pcie. `close` makes the real runs at the end, by which
    predictions are corrected. `device` is `cpu` in tests alone.

    >>> calibrate_gpu(["mlp"], path=Path("gpu.json"))  # doctest: +SKIP
    """
    clock = Clock(budget_s, spent_s)
    closing_s = CLOSING * budget_s if close else 0.0
    clock.reserve_s = END_S + closing_s
    check_not_importing()
    check(outer_world() is None, "calibrate starts its own workers; run it without mpiexec, srun or torchrun")
    if link and link not in GPU_LINKS:
        unknown("link between GPUs", link, GPU_LINKS)
    num_gpus = torch.cuda.device_count() if device == "cuda" else 1
    check(
        num_gpus > 0,
        "torch sees no GPU here, so there is none to calibrate; calibrate on a machine that has one, and give its file "
        "to simulate or advise with --calibration FILE",
    )
    _read_before(path, say)
    check_writable(path)
    made = time.strftime("%Y-%m-%d %H:%M:%S")
    observe(Progress("copies and calls", 0.0))
    first = torch.device(device, 0) if device == "cuda" else torch.device(device)
    copies, tasks, contention = time_copies(first), dict[str, TaskCosts](), list[Contention]()
    measured = []
    for name in dict.fromkeys(task_names):
        observe(Progress(f"{Path(name).name}, first steps", 0.02))
        measured.append(_prepare(name, device))
    comm = _comm_costs(measured[0], num_gpus, link, made, say)
    share = 1 - CLOSING if close else 1.0
    _measure(measured, clock, lambda progress: observe(progress._replace(done=share * progress.done)))
    for task in measured:
        passes = time_passes(task.replica, first)
        tasks[task.gpu.config.task], crowd = _costs(task, passes, made)
        contention += crowd
    hardware = facts.hardware()
    newer = Calibration(
        machine=machine_name(hardware, "cuda"),
        device="cuda",
        made=made,
        hardware=hardware,
        versions=facts.versions(),
        tasks=tasks,
        comms={ENGINE: comm},
        contention=contention,
        cores=CoreTimes(**ALONE),
        others=worst(others for task in measured for others in task.gpu.others),
        copies=copies,
    )
    if newer.others is not None and newer.others.disturbed:
        say(f"{newer.others} during the calibration, which slows the host that hands work to the GPU; calibrate again")
    if close:
        of_runs = lambda progress: observe(progress._replace(done=1 - CLOSING * (1 - progress.done)))  # noqa: E731
        newer = newer.model_copy(update={"closing": close(newer, clock.left_s + closing_s, of_runs, say)})
    with alone_in(path.parent):  # another calibration may have added to the file meanwhile
        before = _read_before(path, lambda sentence: None)
        whole = before.joined(newer) if before is not None else newer
        write_atomically(path, whole.model_dump_json() + "\n")
    observe(Progress("done", 1.0))
    return whole


def gpu_rows(batch: int, samples: int, least: int = 1, piece: int = 0) -> list[int]:
    """Return the numbers of rows to measure: the batch, and powers of two up to a micro-batch of `piece` rows or all
    samples; then micro-batches doubled, and where they are few also one row more.

    Below 32 rows hardly anything but the host's work counts, so that few are measured. One row beyond a micro-batch is
    a second one, which takes the host as long as the first.
    """
    whole = min(piece or samples, samples)
    points = {least, 8, *(2**k for k in range(5, 40) if 2**k < whole), batch, samples}
    if piece:
        points |= {piece << k for k in range(40)} | {(piece << k) + 1 for k in range(JUMPS)}
    return sorted(rows for rows in points if least <= rows <= samples)


def _prepare(name: str, device: str) -> _GpuBench:
    """Load and check a task, and try a step with every number of rows."""
    task = load(name)
    config = resolve(name, {"engine": "serial", "device": device}, task)
    ready = preflight(config, task)
    here = device_of(config, 0)
    train, batch = ready.data.train, Plan(config, ready.data.train, 0, 1).batch_size
    x, _ = train.batch(slice(0, min(2, len(train))), ready.replica.params.dtype)
    least = (
        2 if traits_of(ready.replica.module, moved(x, here)).batch_statistics or ready.replica.meets else 1
    )  # one row has no variance
    data = ready.data.to(here)
    counts = count(ready.replica, config, data.train)
    slow = {"lr": RATE * config.lr, **AT_END, "warmup": 0.0, "lr_decay": "none", "checkpoint_every": 0}
    gpu = GpuTask(task, config.model_copy(update=slow), data, here)
    points = [GpuPoint(rows) for rows in gpu_rows(batch, len(train), least, config.micro_batch)]
    return _GpuBench(name, gpu, ready.replica, counts, batch, points)


def _measure(measured: Sequence[_GpuBench], clock: Clock, observe: Callable[[Progress], None]) -> None:
    """Run every task with every number of rows in turn, forth and back, while the budget lasts."""
    cases = [(task, point) for task in measured for point in task.points]
    begun_s = time.perf_counter()
    for i, (task, point) in enumerate(cases):
        observe(Progress(f"{Path(task.name).name}, {point.rows:,} rows", 0.05 + 0.2 * i / len(cases)))
        point.try_run(task.gpu)
    fixed_s = (time.perf_counter() - begun_s) / (2 * len(cases))  # of a run, besides steps that are worth their time
    left_s = max(0.0, clock.left_s)
    visit_s = min(max(left_s / ROUNDS / (2 * len(cases)) - fixed_s, VISIT_S[0]), VISIT_S[1])
    for turn in range(ROUNDS):
        if turn >= LEAST_ROUNDS and clock.left_s <= 0:
            break
        for i, (task, point) in enumerate(cases if turn % 2 == 0 else reversed(cases)):
            done = 0.25 + 0.75 * (turn + i / len(cases)) / ROUNDS
            observe(Progress(f"{Path(task.name).name}, {point.rows:,} rows", done))
            point.ms.append(task.gpu.time_run(point.rows, point.steps(visit_s), waits=False))
            if point.step_s < SLOW_S:
                steps = point.steps(WAITING_SHARE * visit_s)
                point.waiting_ms.append(task.gpu.time_run(point.rows, steps, waits=True))


def _costs(measured: _GpuBench, passes: Passes, made: str) -> tuple[TaskCosts, list[Contention]]:
    """Return the steps of a task on one GPU, and those that wait for it as ranks do that exchange."""
    config, replica = measured.gpu.config, measured.replica
    alone = [point.row_times(point.ms, passes.serial_ms) for point in measured.points]
    waiting = [point.row_times(point.waiting_ms or point.ms, passes.serial_ms) for point in measured.points]
    costs = TaskCosts(
        task=absolute(config.task),
        parameters=replica.update.num_weights,
        weight_bytes=replica.params.nbytes,
        samples=len(measured.gpu.data.train),
        batch_size=measured.batch_size,
        piece_rows=config.micro_batch,
        **measured.counts._asdict(),
        made=made,
        points=alone,
        touch_ms=passes.touch_ms,
    )
    crowd = [
        Contention(
            engine=ENGINE,
            task=costs.task,
            ranks=2,
            rows=free.rows,
            compute_factor=round(_step_ms(waits) / _step_ms(free), 4),
            times=waits,
            silent=free,
        )
        for free, waits in zip(alone, waiting, strict=True)
    ]
    return costs, crowd


def _step_ms(point: RowTimes) -> float:
    return max(1e-9, undisturbed([a + b for a, b in zip(point.compute_ms, point.serial_ms, strict=True)]))


def _comm_costs(measured: _GpuBench, num_gpus: int, link: str, made: str, say: Callable[[str], None]) -> CommCosts:
    """Return the costs of nccl's calls: measured between several GPUs, unless a link is named, else by formula."""
    device = measured.gpu.device
    try:
        call_us = launch_us(device)
    except (RuntimeError, ManyhandsError) as error:
        why = str(error).splitlines()[0]
        say(f"nccl does not start here, so that the time to launch its calls is not counted: {why}")
        call_us = 0.0
    if num_gpus == 1 or link:
        return formula_costs(link or LINK, add_rate(device), call_us, made)
    ranks = sorted({min(2**k, num_gpus) for k in range(1, num_gpus.bit_length() + 1)})
    gpu = measured.gpu
    return measured_costs(gpu.config, gpu.task, gpu.data, ranks, call_us, made)


def _read_before(path: Path, say: Callable[[str], None]) -> Calibration | None:
    """Return the file's calibration of this machine's GPUs, to add to; one of other versions is dropped."""
    before = open_calibration(path)
    if before is None:
        return None
    hardware = facts.hardware()
    check(
        (before.device, before.machine) == ("cuda", machine_name(hardware, "cuda")),
        f"'{path}' is the calibration of something else, {before.machine}; give another --calibration file",
    )
    changes = differences(before, hardware, facts.versions())
    for sentence in changes:
        say(f"{sentence}; what it had of tasks {', '.join(before.tasks)} is dropped")
    return None if changes else before
