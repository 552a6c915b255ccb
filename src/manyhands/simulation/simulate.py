"""Predict how a task would scale on nodes that one need not have, from what was measured on one machine."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from manyhands import tasks
from manyhands.calibration.busy import say_if_busy
from manyhands.calibration.engines import MODELS
from manyhands.errors import check, unknown
from manyhands.launch.environment import outer_world
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.record import Pulse
from manyhands.record.calibration import Calibration, differences, read_calibration
from manyhands.record.simulation import SimulationDir, SimulationRecord, SimulationRow, TrainedRow
from manyhands.record.store import stem_of, write_record
from manyhands.request import absolute
from manyhands.simulation.parts import TaskNetwork, parts_path
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.request import (
    MOST_FOLLOWED,
    SUCH_HOSTS,
    THIS_HOST,
    SimulationRequest,
    WorkerCount,
    check_batch,
    find_cluster,
    find_way,
    make_points,
    read_syncs,
)
from manyhands.simulation.rows import Alone, make_rows
from manyhands.simulation.spread import SEEDS
from manyhands.simulation.train import RowTraining, train_each
from manyhands.sync import Sync
from manyhands.sync.base import make as make_sync


@dataclass(frozen=True)
class SimulationPulse:
    """How far a simulation is."""

    sync: str
    number: int
    """Of nodes or workers, whichever was asked for."""
    done: float
    total: int
    """Runs of events, and strategies worked out by formula; then trainings."""
    trains: bool = False
    """Whether all is predicted, and some are now trained."""
    accuracy: float | None = None
    """Of the last evaluation."""
    left_s: float | None = None
    """Seconds for which the training that now runs goes on here, as its steps until now tell."""


Observer = Callable[[SimulationPulse], None]


@dataclass(frozen=True)
class _Asked:
    """A request in which everything was found to be good."""

    predictor: Predictor
    syncs: list[str]
    points: list[WorkerCount]
    alone: Alone
    training: RowTraining | None
    warnings: list[str]
    cluster_name: str
    command: str
    begun: float
    """By the clock that measures the whole."""


@dataclass
class _Found:
    """What was found so far."""

    rows: list[tuple[WorkerCount, SimulationRow]] = field(default_factory=list)
    trained: list[TrainedRow] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def simulate(
    task: str,
    nodes: str | int | Sequence[int] | None = None,
    *,
    observe: Observer = lambda pulse: None,
    say: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> SimulationRecord:
    """Predict step time, speed-up, efficiency and cost; without a cluster, of this host with as many cores as workers.

    >>> simulate("mlp", [1, 2, 64], syncs="allreduce,local-sgd:period=8", cluster="ethernet-1g")  # doctest: +SKIP

    task: What to train.
    nodes: How many nodes; either these or `workers`.
    observe: Called with a `SimulationPulse` after each prediction, and while rows are trained.
    say: Called with sentences that a user should read.
    options: The other fields of a `SimulationRequest`: workers, syncs, cluster, calibration, engine, batch_size, …
    """
    begun = time.perf_counter()
    check(outer_world() is None, "simulate needs no real workers; run it without mpiexec, srun or torchrun")
    request = SimulationRequest(task=task, nodes=nodes, **options)
    asked = _prepare(request, say, begun)
    where = nullcontext() if request.out is None else SimulationDir.kept_if_used(request.out, stem_of(task))
    with where as folder:
        return _simulate(asked, folder, observe)


def _prepare(request: SimulationRequest, say: Callable[[str], None], begun: float) -> _Asked:
    """Check a request, and find the calibration, the network, the points and the predictor that it means."""
    place, called = find_cluster(request.cluster)
    counts, specs, task = request.counts(), read_syncs(request.syncs), request.task
    way = find_way(request.method, len(counts) * len(specs))
    known, kept = find_calibration(request.calibration, task, request.engine)
    if place is None and known.comms[request.engine].apart:
        called = SUCH_HOSTS
    for sentence in differences(known, facts.hardware(), facts.versions()):
        say(sentence)
    say_if_busy(known, say)
    network = TaskNetwork(task, known.made, kept)
    network.check_calibrated(known)
    per_worker = request.batch_per_worker
    whole = check_batch(request.batch_size, per_worker, network.config.batch_size, network.samples)
    one_node = called == THIS_HOST and request.by == "workers"  # all workers of this host are on one node
    points = make_points(
        counts,
        request.by,
        node_size=place.node_size if place is not None else max(counts) if one_node else 1,
        samples=network.samples,
        batch_size=whole,
        batch_per_worker=per_worker,
    )
    if per_worker and (cut := [point for point in points if per_worker * point.workers > network.samples]):
        who, samples = f"{cut[0].number:,} {request.by}", f"{network.samples:,} samples"
        say(f"from {who} on a step has all {samples}, which is less than {per_worker:,} a worker")
    predictor = Predictor(known, network, request.engine, place, request.seed, request.steps, way)
    for spec in specs:
        predictor.check(make_sync(spec), points)
    training, warnings = None, list[str]()
    if request.train is not None:
        training = RowTraining(predictor, task, dict(request.train), request.target_accuracy)
        warnings = training.check(specs, points)
    for sentence in warnings:
        say(sentence)
    alone = Alone.of(predictor, per_worker or whole)
    return _Asked(predictor, specs, points, alone, training, warnings, called, request.command, begun)


def _simulate(asked: _Asked, folder: SimulationDir | None, observe: Observer) -> SimulationRecord:
    """Predict, then train; what was found when somebody stops it is kept."""
    found, place = _Found(), asked.predictor.cluster
    try:
        for some in _predict(asked, observe):
            found.rows += zip((each.point for each in some), make_rows(some, asked.alone, place), strict=True)
        _train(asked, found, folder, observe)
        return _keep(asked, found, "complete", folder)
    except KeyboardInterrupt:
        return _keep(asked, found, "interrupted", folder)


def find_calibration(given: Path | Calibration | None, task: str, engine: str) -> tuple[Calibration, Path | None]:
    """Return the calibration that is meant, and the file for what is measured beside it."""
    tasks.load(task)
    if engine not in MODELS:
        unknown("engine that can be calibrated", engine, MODELS)
    if isinstance(given, Calibration):
        return given, None
    path = given or calibration_path()
    return read_calibration(path, absolute(task), engine, named=given is not None), parts_path(path)


def _predict(asked: _Asked, observe: Observer) -> Iterator[list[Predicted]]:
    """Predict every strategy on every number of nodes: by events as far as these can be followed, then by formula.

    What comes together was found at once.
    """
    predictor, done = asked.predictor, 0
    plans = [(strategy, *_plan(predictor, strategy, asked.points)) for strategy in map(make_sync, asked.syncs)]
    total = sum(SEEDS * len(events) + bool(others) for _, events, others in plans)
    for strategy, events, others in plans:
        for point in events:

            def told(point: WorkerCount = point, spec: str = strategy.text) -> None:
                nonlocal done
                done += 1
                observe(SimulationPulse(spec, point.number, done, total))

            yield [predictor.events(strategy, point, told)]
        if others:
            yield list(predictor.formula(strategy, others))
            done += 1
            observe(SimulationPulse(strategy.text, others[-1].number, done, total))


def _train(asked: _Asked, found: _Found, folder: SimulationDir | None, observe: Observer) -> None:
    """Train what was predicted, if that was asked for; keep every result at once, since trainings are long."""
    if asked.training is None:
        return

    def tell(i: int, row: SimulationRow, pulse: Pulse) -> None:
        done, total = i + pulse.step / pulse.steps, len(found.rows)
        told = {"accuracy": pulse.accuracy, "left_s": pulse.eta_s}
        observe(SimulationPulse(row.sync, row.number, done, total, trains=True, **told))

    for result in train_each(asked.training, _in_order(asked, found), folder.path if folder else None, tell):
        if isinstance(result, TrainedRow):
            found.trained.append(result)
        else:
            found.failed.update([result])
        _keep(asked, found, "interrupted", folder)


def _in_order(asked: _Asked, found: _Found) -> list[tuple[WorkerCount, SimulationRow]]:
    """Return the rows as they were asked for: strategy by strategy, and the fewest workers first."""
    order = {spec: i for i, spec in enumerate(asked.syncs)}
    return sorted(found.rows, key=lambda pair: (order[pair[1].sync], pair[1].workers))


def _plan(
    predictor: Predictor, strategy: Sync, points: Sequence[WorkerCount]
) -> tuple[list[WorkerCount], list[WorkerCount]]:
    """Return the points to be followed by events, and the others."""
    most = predictor.most_ranks(strategy) - strategy.num_servers()
    return [point for point in points if point.workers <= most], [point for point in points if point.workers > most]


def _keep(
    asked: _Asked, found: _Found, status: Literal["complete", "interrupted"], folder: SimulationDir | None
) -> SimulationRecord:
    """Put the record together, and write it."""
    predictor, cluster = asked.predictor, asked.predictor.cluster
    known = predictor.calibration
    costs = known.tasks[predictor.task]
    record = SimulationRecord(
        id=folder.path.name if folder else "",
        status=status,
        task=predictor.task,
        command=asked.command,
        made=time.strftime("%Y-%m-%d %H:%M:%S"),
        wall_s=time.perf_counter() - asked.begun,
        engine=predictor.engine,
        cluster=asked.cluster_name,
        seed=predictor.seed,
        steps=predictor.steps,
        parameters=costs.parameters,
        weight_bytes=costs.weight_bytes,
        samples=predictor.network.samples,
        currency=cluster.currency if cluster and cluster.price_per_hour else "",
        alone_ms=asked.alone.step_ms,
        alone_batch=asked.alone.batch_size,
        rows=[row for _, row in _in_order(asked, found)],
        target_accuracy=asked.training.target_accuracy if asked.training else None,
        trained=found.trained,
        failed=found.failed,
        warnings=asked.warnings,
        machine=known.machine,
        calibrated=known.made,
        versions=facts.versions(),
    )
    if folder is not None:
        indent = 2 if len(record.rows) <= MOST_FOLLOWED else None  # nobody reads very many rows line by line
        write_record(folder.record, record, indent=indent)
    return record
