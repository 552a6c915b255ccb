"""Measure this machine in about a minute: a task's steps, the calls of each engine, and what sharing the host costs."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import launch
from manyhands.calibration.busy import say_if_busy
from manyhands.calibration.calls import SIZES, joined_calls
from manyhands.calibration.cores import time_cores
from manyhands.calibration.counts import Counts, count
from manyhands.calibration.engines import MODELS
from manyhands.calibration.fits import comm_costs
from manyhands.calibration.plan import LaunchBudget, Stage, stages_of
from manyhands.calibration.steps import added_steps, joined_steps
from manyhands.calibration.worker import CalibrationAsk, calibrate_rank
from manyhands.config import RunConfig
from manyhands.errors import UserError, check, unknown
from manyhands.launch.base import Observer
from manyhands.launch.environment import outer_world
from manyhands.machine import facts
from manyhands.machine.load import others_of, worst
from manyhands.measurement.budget import END_S, Clock
from manyhands.measurement.budget import START_S as PROCESS_START_S
from manyhands.measurement.trial import try_steps
from manyhands.model.undisturbed import undisturbed
from manyhands.record import Pulse, RunDir, write_atomically
from manyhands.record.calibration import (
    Calibration,
    CallTimes,
    Contention,
    CoreTimes,
    RowTimes,
    TaskCosts,
    differences,
    machine_name,
    open_calibration,
)
from manyhands.record.files import alone_in
from manyhands.replica.traits import traits_of
from manyhands.request import absolute, resolve
from manyhands.run import Ready, preflight
from manyhands.tasks import Task, load
from manyhands.tasks.load import check_not_importing
from manyhands.training.job import Job

ENGINES = ("threads", "mpi")
FITS = 0.5
"""Time to fit what was measured and to end, as a share of what a process takes to start."""
MOST_POINTS = 10
"""Numbers of rows to measure; where halves would be more, the rows are quartered."""


class Progress(NamedTuple):
    """How far a calibration is."""

    label: str
    done: float
    """Share of the time."""


class _Measured(NamedTuple):
    """A task to measure, ready to be run."""

    task: Task
    config: RunConfig
    ready: Ready
    rows: list[int]
    counts: Counts
    steps_s: float
    """What one step with each number of rows takes, all of them together."""


def calibrate(
    task_names: Sequence[str],
    *,
    path: Path,
    engines: Sequence[str] = ENGINES,
    ranks: int = 0,
    budget_s: float = 60.0,
    over_budget: bool = False,
    spent_s: float = 0.0,
    sizes: Sequence[int] = (),
    observe: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Calibration:
    """Measure tasks and engines with up to so many ranks (0: the cores); add what came out to the file, and return it.

    The budget counts from when the command was given, `spent_s` ago; one too short to measure everything once is
    refused, unless it may be exceeded. `sizes` are the bytes of calls, if not the usual. What is to be said beside
    progress, such as that other programs disturbed it, is said in sentences.

    >>> calibrate(["mlp"], path=Path("here.json"))  # doctest: +SKIP
    """
    clock = Clock(budget_s, spent_s)
    check_not_importing()
    check(outer_world() is None, "calibrate starts its own workers; run it without mpiexec, srun or torchrun")
    engines = list(dict.fromkeys(engines))
    _check_engines(engines)
    most = _most_ranks(ranks)
    _before(path, say)
    measured = {absolute(name): _prepare(name, engines, most) for name in dict.fromkeys(task_names)}
    _check_writable(path)
    stages = stages_of(list(measured), engines, crowds(most))
    start_s = clock.elapsed_s + (0.0 if spent_s else PROCESS_START_S)
    clock.reserve_s = END_S + FITS * start_s
    schedule = LaunchBudget(clock, start_s, {name: own.steps_s for name, own in measured.items()})
    if not over_budget:
        schedule.check_budget(stages)
    observe(Progress("cores", 0.0))
    cores = time_cores(facts.cores())
    found = _launch_all(stages, measured, sizes or SIZES, schedule, observe)
    newer = _gather(stages, measured, found, cores)
    say_if_busy(newer, say)
    with alone_in(path.parent):  # another calibration may have added to the file meanwhile
        before = _before(path, lambda sentence: None)
        whole = before.joined(newer) if before is not None else newer
        write_atomically(path, whole.model_dump_json() + "\n")
    return whole


def crowds(most: int) -> list[int]:
    """Return the numbers of ranks to measure: 2, 4, 8 … and the most."""
    return sorted({min(2**k, most) for k in range(1, most.bit_length() + 1)} - {1})


def row_points(batch: int, samples: int, least: int = 1) -> list[int]:
    """Return the numbers of rows to measure: the batch, twice that, a half, a quarter … down to the least."""
    for factor in (2, 4, 8, 16):
        below = [batch // factor**k for k in range(1, 64) if batch // factor**k > least]
        points = sorted({least, *below, batch, min(2 * batch, samples)})
        if len(points) <= MOST_POINTS:
            break
    return [rows for rows in points if least <= rows <= samples]


def _check_engines(engines: Sequence[str]) -> None:
    check(len(engines) > 0, "which engines? for example: --engines threads,mpi")
    for engine in engines:
        if engine not in MODELS:
            unknown("engine to calibrate", engine, MODELS)


def _most_ranks(asked: int) -> int:
    cores = facts.cores()
    check(cores > 1, "a calibration needs two cores or more, to measure what passes between them; this machine has one")
    most = asked or cores
    check(2 <= most <= cores, f"ranks must be from 2 to the {cores} cores that are here, got {most}")
    return most


def _before(path: Path, say: Callable[[str], None]) -> Calibration | None:
    """Return what the file has of this machine, to add to; what was measured with other versions is left behind."""
    before = open_calibration(path)
    if before is None:
        return None
    hardware = facts.hardware()
    check(
        before.machine == machine_name(hardware),
        f"'{path}' is the calibration of another machine, {before.machine}; give another --calibration file",
    )
    others = differences(before, hardware, facts.versions())
    for sentence in others:
        say(f"{sentence}; what it had of tasks {', '.join(before.tasks)} is dropped")
    return None if others else before


def _check_writable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write the calibration '{path}': {error.strerror}") from None
    check(not path.is_dir(), f"cannot write the calibration '{path}': it is a folder")


def _prepare(name: str, engines: Sequence[str], most: int) -> _Measured:
    """Find what is wrong with a task before anything is measured."""
    task = load(name)
    config = resolve(name, {"engine": "serial", "blas_threads": 1}, task)
    ready = preflight(config, task)
    for engine in engines:
        launch.make(engine).check(config.model_copy(update={"engine": engine, "workers": 2}))
    samples = len(ready.data.train)
    batch = samples if config.batch_size == "full" else min(config.batch_size, samples)
    x, _ = ready.data.train.batch(slice(0, min(2, samples)), ready.replica.params.dtype)
    least = 2 if traits_of(ready.replica.module, x).batch_statistics else 1  # which one row may not have
    check(
        least * most <= samples,
        f"{most} ranks cannot share the {samples} training samples of '{name}'; give fewer --ranks, or another task",
    )
    shares = {batch // ranks for ranks in crowds(most) if batch // ranks >= least}  # of workers that share the batch
    rows = sorted(shares.union(row_points(batch, samples, least)))
    counts = count(ready.replica, config, ready.data.train)
    steps_s = try_steps(config, ready, fewest=1).least_s * sum(rows) / batch
    return _Measured(task, config, ready, rows, counts, steps_s)


def _launch_all(
    stages: Sequence[Stage],
    measured: dict[str, _Measured],
    sizes: Sequence[int],
    schedule: LaunchBudget,
    observe: Callable[[Progress], None],
) -> list[list[dict[str, Any]]]:
    """Visit every stage, and all of them once more where that costs little: machines change within a minute.

    Calls, of which a slow link makes few, are timed on the first visit alone. A second visit for which no time is left
    is not made.
    """
    visits = schedule.visits(stages)
    total = sum(stage.weight for stage in visits)
    found: dict[int, list[dict[str, Any]]] = {}
    done = 0.0
    for i, stage in enumerate(visits):
        before = found.get(i % len(stages), [])
        if before and schedule.least_s(stage) > schedule.clock.left_s:
            break
        share, second_s, began_s = stage.weight / total, schedule.second_s(visits[i:]), time.perf_counter()
        observe(Progress(stage.label, done))
        told = _watcher(stage, done, share, observe)
        seen = _launch(stage, measured[stage.task], sizes, second_s, told, before)
        schedule.note(stage, time.perf_counter() - began_s, second_s)
        num_hosts(seen)
        found[i % len(stages)] = [_added(*each) for each in zip(before, seen, strict=True)] if before else seen
        done += share
    observe(Progress("done", 1.0))
    return list(found.values())


def _added(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what a rank saw on two visits."""
    return {**before, "steps": [added_steps(*each) for each in zip(before["steps"], after["steps"], strict=True)]}


def _watcher(stage: Stage, done: float, share: float, observe: Callable[[Progress], None]) -> Observer:
    def told(pulse: Pulse) -> None:
        observe(Progress(stage.label, done + share * pulse.step / pulse.steps))

    return told


def _launch(
    stage: Stage,
    own: _Measured,
    sizes: Sequence[int],
    second: float,
    observe: Observer,
    before: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Run one stage, as `before`, if it was visited; return what each rank saw."""
    config = own.config.model_copy(update={"engine": stage.engine, "workers": stage.ranks})
    rows = [each for each in own.rows if each * stage.ranks <= len(own.ready.data.train)]
    blocks = [point["block"] for point in before[0]["steps"]] if before else []
    ask = CalibrationAsk(rows, second * stage.steps_weight, second * stage.calls_weight, list(sizes), blocks)
    with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
        job = Job(config, RunDir(Path(folder)), task=own.task, data=own.ready.data, extra=ask._asdict())
        found = launch.make(stage.engine).launch(calibrate_rank, job, observe)
    if found[0]["status"] == "interrupted":
        raise KeyboardInterrupt
    return found


def _gather(
    stages: Sequence[Stage],
    measured: dict[str, _Measured],
    found: Sequence[Sequence[dict[str, Any]]],
    cores: CoreTimes,
) -> Calibration:
    """Put together what the ranks saw."""
    made = time.strftime("%Y-%m-%d %H:%M:%S")
    tasks: dict[str, TaskCosts] = {}
    contention: list[Contention] = []
    calls: dict[str, list[CallTimes]] = {}
    hosts: dict[str, int] = {}
    for stage, ranks in zip(stages, found, strict=True):
        times = joined_steps([own["steps"] for own in ranks])
        if stage.ranks == 1:
            tasks[stage.task] = _task_costs(stage.task, measured[stage.task], times, ranks[0]["steps"], made)
            continue
        exchanges = {
            same[0]["rows"]: joined_calls([own["exchanges"] for own in same])
            for same in zip(*(own["steps"] for own in ranks), strict=True)
        }
        silent = joined_steps([[point["silent"] for point in own["steps"]] for own in ranks])
        contention += [
            _contention(stage, num_hosts(ranks), tasks[stage.task], each, quiet, exchanges[each.rows])
            for each, quiet in zip(times, silent, strict=True)
        ]
        calls.setdefault(stage.engine, []).extend(joined_calls([own["calls"] for own in ranks]))
        hosts[stage.engine] = num_hosts(ranks)
    hardware = facts.hardware()
    return Calibration(
        machine=machine_name(hardware),
        made=made,
        hardware=hardware,
        versions=facts.versions(),
        tasks=tasks,
        comms={engine: comm_costs(engine, points, made, hosts[engine]) for engine, points in calls.items()},
        contention=contention,
        cores=cores,
        others=worst(others_of([own["use"] for own in ranks]) for ranks in found),
    )


def _task_costs(
    name: str, own: _Measured, points: list[RowTimes], steps: Sequence[dict[str, Any]], made: str
) -> TaskCosts:
    updates = [undisturbed(point["update_ms"]) / max(undisturbed(point["serial_ms"]), 1e-9) for point in steps]
    params = own.ready.replica.params
    samples = len(own.ready.data.train)
    return TaskCosts(
        task=name,
        parameters=own.ready.replica.update.num_weights,
        weight_bytes=params.nbytes,
        samples=samples,
        batch_size=samples if own.config.batch_size == "full" else min(own.config.batch_size, samples),
        piece_rows=own.config.micro_batch,
        **own.counts._asdict(),
        made=made,
        points=points,
        touch_ms=[ms for point in steps for ms in point["touch_ms"]],
        update_share=min(1.0, statistics.median(updates)),
    )


def _contention(
    stage: Stage, hosts: int, costs: TaskCosts, times: RowTimes, silent: RowTimes, exchanges: list[CallTimes]
) -> Contention:
    alone = next(point for point in costs.points if point.rows == times.rows)
    return Contention(
        engine=stage.engine,
        task=stage.task,
        ranks=stage.ranks,
        hosts=hosts,
        rows=times.rows,
        compute_factor=round(undisturbed(times.compute_ms) / max(undisturbed(alone.compute_ms), 1e-9), 4),
        times=times,
        silent=silent,
        exchanges=exchanges,
    )


def num_hosts(ranks: Sequence[dict[str, Any]]) -> int:
    """Return how many hosts these ranks were on; of a mixture nobody could tell what sharing a host or a link costs."""
    found = len({own["host"] for own in ranks})
    check(
        found in (1, len(ranks)),
        f"the {len(ranks)} ranks were on {found} hosts, but a calibration needs them on one host or on one each; "
        "give fewer --ranks, or another list of hosts",
    )
    return found
