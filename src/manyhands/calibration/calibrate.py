"""Measure this machine in about a minute: a task's steps, the calls of each engine, and what sharing the host costs."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import launch
from manyhands.calibration.busy import say_if_busy
from manyhands.calibration.calls import joined_calls
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
from manyhands.record.calibration import (
    Calibration,
    CallTimes,
    ClosingRun,
    Contention,
    CoreTimes,
    RowTimes,
    TaskCosts,
    differences,
    machine_name,
    open_calibration,
)
from manyhands.record.files import alone_in, write_atomically
from manyhands.record.run import Pulse, RunDir
from manyhands.replica.traits import traits_of
from manyhands.request import absolute, resolve
from manyhands.run import Ready, preflight
from manyhands.tasks import Task, load
from manyhands.tasks.load import check_not_importing
from manyhands.training.job import Job
from manyhands.training.plan import Plan

ENGINES = ("threads", "mpi")
FITS = 0.5
"""Time to fit the measured times and to end, as a share of the time that a process takes to start."""
MOST_POINTS = 10
"""Numbers of rows to measure; where halving the batch gives more, it is quartered."""

RankTimes = dict[str, Any]
"""What `calibrate_rank` returns: the times of one rank."""


class Progress(NamedTuple):
    """How far a calibration is."""

    label: str
    done: float
    """Share of the time."""


Close = Callable[[Calibration, float, Callable[[Progress], None], Callable[[str], None]], list[ClosingRun]]
"""Makes real runs for some seconds, given a calibration, and callbacks for progress and messages."""
CLOSING = 0.45
"""Share of the budget that is kept for real runs."""


class _Measured(NamedTuple):
    """A task to measure, ready to be run."""

    task: Task
    config: RunConfig
    ready: Ready
    batch_size: int
    rows: list[int]
    """Numbers of rows to measure."""
    counts: Counts
    steps_s: float
    """Seconds of one step with each number of rows, summed."""


def calibrate(
    task_names: Sequence[str],
    *,
    path: Path,
    engines: Sequence[str] = ENGINES,
    ranks: int = 0,
    budget_s: float = 60.0,
    over_budget: bool = False,
    spent_s: float = 0.0,
    close: Close | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Calibration:
    """Measure tasks and engines with up to `ranks` ranks (0: the cores); add the times to the file, and return it.

    `close` makes the real runs at the end, by which predictions are corrected; without it, they are not. The budget
    counts from when the command was given, `spent_s` ago; a budget too short to measure everything once is refused,
    unless `over_budget`. `say` is called with warnings, such as that other programs disturbed a measurement.

    >>> calibrate(["mlp"], path=Path("here.json"))  # doctest: +SKIP
    """
    clock = Clock(budget_s, spent_s)
    check_not_importing()
    check(outer_world() is None, "calibrate starts its own workers; run it without mpiexec, srun or torchrun")
    engines = list(dict.fromkeys(engines))
    check(len(engines) > 0, "which engines? for example: --engines threads,mpi")
    for engine in engines:
        if engine not in MODELS:
            unknown("engine to calibrate", engine, MODELS)
    most = _most_ranks(ranks)
    _read_before(path, say)
    measured = {absolute(name): _prepare(name, engines, most) for name in dict.fromkeys(task_names)}
    check_writable(path)
    stages = stages_of(list(measured), engines, crowds(most))
    start_s = clock.elapsed_s + (0.0 if spent_s else PROCESS_START_S)
    closing_s = CLOSING * budget_s if close else 0.0
    clock.reserve_s = END_S + FITS * start_s + closing_s
    schedule = LaunchBudget(clock, start_s, {name: task.steps_s for name, task in measured.items()})
    if not over_budget:
        schedule.check_budget(stages)
    observe(Progress("cores", 0.0))
    cores = time_cores(facts.cores())
    measuring = 1 - closing_s / budget_s

    def show(progress: Progress) -> None:
        observe(progress._replace(done=measuring * progress.done))

    def show_runs(progress: Progress) -> None:
        observe(progress._replace(done=measuring + (1 - measuring) * progress.done))

    of_stages = _launch_all(stages, measured, schedule, show)
    newer = _join(stages, measured, of_stages, cores)
    say_if_busy(newer, say)
    if close:
        left_s = closing_s if over_budget else clock.left_s + closing_s
        newer = newer.model_copy(update={"closing": close(newer, left_s, show_runs, say)})
    observe(Progress("done", 1.0))
    with alone_in(path.parent):  # another calibration may have added to the file meanwhile
        before = _read_before(path, lambda sentence: None)
        whole = before.joined(newer) if before is not None else newer
        write_atomically(path, whole.model_dump_json() + "\n")
    return whole


def crowds(most: int) -> list[int]:
    """Return the numbers of ranks to measure: 2, 4, 8 … and `most`."""
    return sorted({min(2**k, most) for k in range(1, most.bit_length() + 1)} - {1})


def row_points(batch: int, samples: int, least: int = 1) -> list[int]:
    """Return the numbers of rows to measure: twice the batch, the batch, a half, a quarter … down to `least`."""
    for factor in (2, 4, 8, 16):
        below = [batch // factor**k for k in range(1, 64) if batch // factor**k > least]
        points = sorted({least, *below, batch, min(2 * batch, samples)})
        if len(points) <= MOST_POINTS:
            break
    return [rows for rows in points if least <= rows <= samples]


def _most_ranks(ranks: int) -> int:
    cores = facts.cores()
    check(cores > 1, "a calibration needs two cores or more, to measure what passes between them; this machine has one")
    most = ranks or cores
    check(2 <= most <= cores, f"ranks must be from 2 to the {cores} cores that are here, got {most}")
    return most


def _read_before(path: Path, say: Callable[[str], None]) -> Calibration | None:
    """Return the file's calibration of this machine, to add to; one that other versions have measured is dropped."""
    before = open_calibration(path)
    if before is None:
        return None
    hardware = facts.hardware()
    check(
        before.machine == machine_name(hardware),
        f"'{path}' is the calibration of another machine, {before.machine}; give another --calibration file",
    )
    changes = differences(before, hardware, facts.versions())
    for sentence in changes:
        say(f"{sentence}; what it had of tasks {', '.join(before.tasks)} is dropped")
    return None if changes else before


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write the calibration '{path}': {error.strerror}") from None
    check(not path.is_dir(), f"cannot write the calibration '{path}': it is a folder")


def _prepare(name: str, engines: Sequence[str], most: int) -> _Measured:
    """Load and check a task before anything is measured."""
    task = load(name)
    config = resolve(name, {"engine": "serial", "blas_threads": 1}, task)
    ready = preflight(config, task)
    for engine in engines:
        launch.make(engine).check(config.model_copy(update={"engine": engine, "workers": 2}))
    train = ready.data.train
    samples, batch = len(train), Plan(config, train, 0, 1).batch_size
    x, _ = train.batch(slice(0, min(2, samples)), ready.replica.params.dtype)
    least = (
        2 if traits_of(ready.replica.module, x).batch_statistics or ready.replica.meets else 1
    )  # one row has no variance
    check(
        least * most <= samples,
        f"{most} ranks cannot share the {samples} training samples of '{name}'; give fewer --ranks, or another task",
    )
    shares = {batch // ranks for ranks in crowds(most) if batch // ranks >= least}  # of workers that share the batch
    rows = sorted(shares.union(row_points(batch, samples, least)))
    counts = count(ready.replica, config, train)
    steps_s = try_steps(config, ready, fewest=1).least_s * sum(rows) / batch
    return _Measured(task, config, ready, batch, rows, counts, steps_s)


def _launch_all(
    stages: Sequence[Stage],
    measured: dict[str, _Measured],
    schedule: LaunchBudget,
    observe: Callable[[Progress], None],
) -> list[list[RankTimes]]:
    """Return the ranks' times of every stage, from one visit or, where that costs little, from two: machines change
    within a minute.

    Calls, of which a slow link makes few, are timed on the first visit alone. A second visit is left out when there is
    no time for it.
    """
    visits = schedule.visits(stages)
    total = sum(stage.weight for stage in visits)
    of_stages: dict[int, list[RankTimes]] = {}
    done = 0.0
    for i, stage in enumerate(visits):
        before = of_stages.get(i % len(stages), [])
        if before and schedule.least_s(stage) > schedule.clock.left_s:
            break
        share, second_s, began_s = stage.weight / total, schedule.second_s(visits[i:]), time.perf_counter()

        def show(pulse: Pulse, label: str = stage.label, done: float = done, share: float = share) -> None:
            observe(Progress(label, done + share * pulse.step / pulse.steps))

        observe(Progress(stage.label, done))
        of_ranks = _launch(stage, measured[stage.task], second_s, show, before)
        schedule.note(stage, time.perf_counter() - began_s, second_s)
        num_hosts(of_ranks)
        of_stages[i % len(stages)] = list(map(_added, before, of_ranks)) if before else of_ranks
        done += share
    return list(of_stages.values())


def _added(before: RankTimes, after: RankTimes) -> RankTimes:
    """Return the times of a rank on two visits, of which the first has timed the calls."""
    return {**before, "steps": list(map(added_steps, before["steps"], after["steps"]))}


def _launch(
    stage: Stage, measured: _Measured, second_s: float, observe: Observer, before: Sequence[RankTimes]
) -> list[RankTimes]:
    """Run one stage, in blocks of steps as `before` if it was visited, and return each rank's times."""
    config = measured.config.model_copy(update={"engine": stage.engine, "workers": stage.ranks})
    data = measured.ready.data
    rows = [rows for rows in measured.rows if rows * stage.ranks <= len(data.train)]
    blocks = [point["block"] for point in before[0]["steps"]] if before else []
    ask = CalibrationAsk(rows, second_s * stage.steps_weight, second_s * stage.calls_weight, blocks)
    with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
        job = Job(config, RunDir(Path(folder)), task=measured.task, data=data, extra=ask._asdict())
        of_ranks = launch.make(stage.engine).launch(calibrate_rank, job, observe)
    if of_ranks[0]["status"] == "interrupted":
        raise KeyboardInterrupt
    return of_ranks


def _join(
    stages: Sequence[Stage],
    measured: dict[str, _Measured],
    of_stages: Sequence[Sequence[RankTimes]],
    cores: CoreTimes,
) -> Calibration:
    """Join all ranks' times of all stages to a calibration."""
    measured_at = time.strftime("%Y-%m-%d %H:%M:%S")
    tasks: dict[str, TaskCosts] = {}
    contention: list[Contention] = []
    calls: dict[str, list[CallTimes]] = {}
    hosts: dict[str, int] = {}
    for stage, ranks in zip(stages, of_stages, strict=True):
        times = joined_steps([rank["steps"] for rank in ranks])
        if stage.ranks == 1:
            tasks[stage.task] = _task_costs(stage.task, measured[stage.task], times, ranks[0]["steps"], measured_at)
            continue
        hosts[stage.engine] = num_hosts(ranks)
        calls.setdefault(stage.engine, []).extend(joined_calls([rank["calls"] for rank in ranks]))
        exchanges = {
            same[0]["rows"]: joined_calls([point["exchanges"] for point in same])
            for same in zip(*(rank["steps"] for rank in ranks), strict=True)
        }
        silent = joined_steps([[point["silent"] for point in rank["steps"]] for rank in ranks])
        alone_ms = {point.rows: max(undisturbed(point.compute_ms), 1e-9) for point in tasks[stage.task].points}
        contention += [
            Contention(
                engine=stage.engine,
                task=stage.task,
                ranks=stage.ranks,
                hosts=hosts[stage.engine],
                rows=crowded.rows,
                compute_factor=round(undisturbed(crowded.compute_ms) / alone_ms[crowded.rows], 4),
                times=crowded,
                silent=quiet,
                exchanges=exchanges[crowded.rows],
            )
            for crowded, quiet in zip(times, silent, strict=True)
        ]
    hardware = facts.hardware()
    return Calibration(
        machine=machine_name(hardware),
        made=measured_at,
        hardware=hardware,
        versions=facts.versions(),
        tasks=tasks,
        comms={engine: comm_costs(engine, points, measured_at, hosts[engine]) for engine, points in calls.items()},
        contention=contention,
        cores=cores,
        others=worst(others_of([rank["use"] for rank in ranks]) for ranks in of_stages),
    )


def _task_costs(
    name: str, measured: _Measured, points: list[RowTimes], steps: Sequence[dict[str, Any]], measured_at: str
) -> TaskCosts:
    updates = [undisturbed(point["update_ms"]) / max(undisturbed(point["serial_ms"]), 1e-9) for point in steps]
    replica = measured.ready.replica
    return TaskCosts(
        task=name,
        parameters=replica.update.num_weights,
        weight_bytes=replica.params.nbytes,
        samples=len(measured.ready.data.train),
        batch_size=measured.batch_size,
        piece_rows=measured.config.micro_batch,
        **measured.counts._asdict(),
        made=measured_at,
        points=points,
        touch_ms=[ms for point in steps for ms in point["touch_ms"]],
        update_share=min(1.0, statistics.median(updates)),
    )


def num_hosts(ranks: Sequence[RankTimes]) -> int:
    """Return the number of hosts that the ranks were on; refuse a mixture, whose times would be neither those of
    sharing a host nor those of a link."""
    hosts = len({rank["host"] for rank in ranks})
    check(
        hosts in (1, len(ranks)),
        f"the {len(ranks)} ranks were on {hosts} hosts, but a calibration needs them on one host or on one each; "
        "give fewer --ranks, or another list of hosts",
    )
    return hosts
