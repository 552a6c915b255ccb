"""Predict how a task would scale on nodes that one need not have, from what was measured on one machine."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from manyhands import facts, tasks
from manyhands.errors import check, unknown
from manyhands.lab.calibrate import say_if_busy
from manyhands.lab.defaults import MODELS
from manyhands.lab.folders import kept_if_used
from manyhands.lab.sim_asked import (
    MOST_FOLLOWED,
    SUCH_HOSTS,
    THIS_HOST,
    Point,
    check_batch,
    find_cluster,
    find_way,
    make_points,
    read_counts,
    read_syncs,
)
from manyhands.lab.sim_parts import Network, parts_path
from manyhands.lab.sim_predict import Predicted, Predictor
from manyhands.lab.sim_rows import Alone, make_rows
from manyhands.lab.sim_spread import SEEDS
from manyhands.lab.sim_train import Training, train_each
from manyhands.launch.environment import outer_world
from manyhands.launch.places import calibration_path
from manyhands.model.cluster import Cluster
from manyhands.record import Pulse, write_atomically
from manyhands.record.calibration import Calibration, differences, read_calibration
from manyhands.record.simulation import SimulationDir, SimulationRecord, SimulationRow, TrainedRow, Unit
from manyhands.request import absolute
from manyhands.sync.base import make as make_sync

ENGINE = "mpi"


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
    points: list[Point]
    alone: Alone
    training: Training | None
    warnings: list[str]
    cluster_name: str
    command: str
    begun: float
    """By the clock that measures the whole."""


@dataclass
class _Found:
    """What was found so far."""

    rows: list[tuple[Point, SimulationRow]] = field(default_factory=list)
    trained: list[TrainedRow] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def simulate(
    task: str,
    nodes: str | int | Sequence[int] | None = None,
    *,
    workers: str | int | Sequence[int] | None = None,
    syncs: str | Sequence[str] = "allreduce",
    cluster: str | Path | Cluster | None = None,
    calibration: Path | Calibration | None = None,
    engine: str = ENGINE,
    batch_size: int | str | None = None,
    batch_per_worker: int | None = None,
    steps: int = 0,
    method: str = "auto",
    seed: int = 0,
    train: Mapping[str, Any] | None = None,
    target_accuracy: float | None = None,
    out: Path | None = None,
    command: str = "",
    observe: Observer = lambda pulse: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> SimulationRecord:
    """Predict step time, speed-up, efficiency and cost; without a cluster, of this host with as many cores as workers.

    With options of `manyhands train`, `{}` or `{"epochs": 2}`, every row is trained too, as those nodes would.

    >>> simulate("mlp", [1, 2, 64], syncs="allreduce,local-sgd:period=8", cluster="ethernet-1g")  # doctest: +SKIP
    """
    begun = time.perf_counter()
    check(outer_world() is None, "simulate needs no real workers; run it without mpiexec, srun or torchrun")
    check(steps >= 0, f"steps must be at least 1, got {steps}")
    check(seed >= 0, f"seed must be at least 0, got {seed}")
    place, called = find_cluster(cluster)
    check((nodes is None) != (workers is None), "say how many: --nodes 1,2,4 or --workers 1,2,4, not both")
    by: Unit = "nodes" if nodes is not None else "workers"
    counts = read_counts(workers or "" if nodes is None else nodes, by)
    specs = read_syncs(syncs)
    way = find_way(method, len(counts) * len(specs))
    known, kept = find_calibration(calibration, task, engine)
    if place is None and known.comms[engine].apart:
        called = SUCH_HOSTS
    for sentence in differences(known, facts.hardware(), facts.versions()):
        say(sentence)
    say_if_busy(known, say)
    network = Network(task, known.made, kept)
    network.check_calibrated(known)
    whole = check_batch(batch_size, batch_per_worker, network.config.batch_size, network.samples)
    here = max(counts) if called == THIS_HOST and by == "workers" else 1  # all workers of this host are on one node
    points = make_points(
        counts,
        by,
        node_size=place.node_size if place is not None else here,
        samples=network.samples,
        batch_size=whole,
        batch_per_worker=batch_per_worker,
    )
    if batch_per_worker and (cut := [point for point in points if batch_per_worker * point.workers > network.samples]):
        who, samples = f"{cut[0].number:,} {by}", f"{network.samples:,} samples"
        say(f"from {who} on a step has all {samples}, which is less than {batch_per_worker:,} a worker")
    predictor = Predictor(known, network, engine, place, seed, steps, way)
    for spec in specs:
        predictor.check(spec, points)
    training = None if train is None else Training(predictor, task, dict(train), target_accuracy)
    warnings = [] if training is None else training.check(specs, points)
    for sentence in warnings:
        say(sentence)
    alone = Alone.of(predictor, batch_per_worker or whole)
    asked = _Asked(predictor, specs, points, alone, training, warnings, called, command, begun)
    with kept_if_used(out, task) if out is not None else nullcontext() as kept_in:
        return _simulate(asked, None if kept_in is None else SimulationDir(kept_in), observe)


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
    plans = {spec: _plan(predictor, spec, asked.points) for spec in asked.syncs}
    total = sum(SEEDS * len(events) + bool(others) for events, others in plans.values())
    for spec, (events, others) in plans.items():
        for point in events:

            def told(point: Point = point, spec: str = spec) -> None:
                nonlocal done
                done += 1
                observe(SimulationPulse(spec, point.number, done, total))

            yield [predictor.events(spec, point, told)]
        if others:
            yield list(predictor.formula(spec, others))
            done += 1
            observe(SimulationPulse(spec, others[-1].number, done, total))


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


def _in_order(asked: _Asked, found: _Found) -> list[tuple[Point, SimulationRow]]:
    """Return the rows as they were asked for: strategy by strategy, and the fewest workers first."""
    order = {spec: i for i, spec in enumerate(asked.syncs)}
    return sorted(found.rows, key=lambda pair: (order[pair[1].sync], pair[1].workers))


def _plan(predictor: Predictor, spec: str, points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Return the points to be followed by events, and the others."""
    servers = make_sync(spec).num_servers()
    most = predictor.most_ranks(spec) - servers
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
        write_atomically(folder.record, record.model_dump_json(indent=indent) + "\n")
    return record
