"""Predict how a task would scale on nodes that one need not have, from what was measured on one machine."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from manyhands import facts, tasks
from manyhands.errors import UserError, check, unknown
from manyhands.lab.calibrate import MODELS
from manyhands.lab.sim_asked import Point, check_batch, find_cluster, find_way, make_points, read_counts, read_syncs
from manyhands.lab.sim_parts import Network, parts_path
from manyhands.lab.sim_predict import Predicted, Predictor
from manyhands.lab.sim_rows import Alone, make_row
from manyhands.lab.sim_spread import SEEDS
from manyhands.launch.places import calibration_path
from manyhands.model.cluster import Cluster
from manyhands.record import write_atomically
from manyhands.record.calibration import Calibration, differences, read_calibration
from manyhands.record.simulation import SimulationDir, SimulationRecord, SimulationRow
from manyhands.request import absolute
from manyhands.sync.base import make as make_sync

ENGINE = "mpi"


@dataclass(frozen=True)
class SimulationPulse:
    """How far a simulation is."""

    sync: str
    nodes: int
    done: int
    total: int
    """Runs of events, and strategies worked out by formula."""


Observer = Callable[[SimulationPulse], None]


@dataclass(frozen=True)
class _Asked:
    """A request in which everything was found to be good."""

    predictor: Predictor
    syncs: list[str]
    points: list[Point]
    alone: Alone
    cluster_name: str
    command: str


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
    out: Path | None = None,
    command: str = "",
    observe: Observer = lambda pulse: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> SimulationRecord:
    """Predict step time, speed-up, efficiency and cost; without a cluster, of this host with as many cores as workers.

    >>> simulate("mlp", [1, 2, 64], syncs="allreduce,local-sgd:period=8", cluster="ethernet-1g")  # doctest: +SKIP
    """
    begun = time.perf_counter()
    check(steps >= 0, f"steps must be at least 1, got {steps}")
    check(seed >= 0, f"seed must be at least 0, got {seed}")
    place, called = find_cluster(cluster)
    check((nodes is None) != (workers is None), "say how many: --nodes 1,2,4 or --workers 1,2,4, not both")
    counts = read_counts(nodes, "nodes") if nodes is not None else read_counts(workers or "", "workers")
    specs = read_syncs(syncs)
    way = find_way(method, len(counts) * len(specs))
    known, kept = find_calibration(calibration, task, engine)
    for sentence in differences(known, facts.hardware(), facts.versions()):
        say(sentence)
    network = Network(task, known.made, kept)
    whole = check_batch(batch_size, batch_per_worker, network.config.batch_size, network.samples)
    points = make_points(
        counts,
        ranks_per_node=place.node_size if place is not None and nodes is not None else 1,
        samples=network.samples,
        batch_size=whole,
        batch_per_worker=batch_per_worker,
    )
    predictor = Predictor(known, network, engine, place, seed, steps, way)
    for spec in specs:
        predictor.check(spec, points)
    alone = Alone.of(predictor, batch_per_worker or whole)
    folder = _open(out, task)
    asked = _Asked(predictor, specs, points, alone, called, command)
    rows: list[SimulationRow] = []
    status: Literal["complete", "interrupted"] = "complete"
    try:
        rows.extend(make_row(each, alone, place) for each in _predict(asked, observe))
    except KeyboardInterrupt:
        status = "interrupted"
    record = _record(asked, rows, status, time.perf_counter() - begun, folder)
    if folder is not None:
        write_atomically(folder.record, record.model_dump_json(indent=2) + "\n")
    return record


def find_calibration(given: Path | Calibration | None, task: str, engine: str) -> tuple[Calibration, Path | None]:
    """Return the calibration that is meant, and the file for what is measured beside it."""
    tasks.load(task)
    if engine not in MODELS:
        unknown("engine that can be calibrated", engine, MODELS)
    if isinstance(given, Calibration):
        return given, None
    path = given or calibration_path()
    return read_calibration(path, absolute(task), engine), parts_path(path)


def _predict(asked: _Asked, observe: Observer) -> Iterator[Predicted]:
    """Predict every strategy on every number of nodes: by events as far as these can be followed, then by formula."""
    predictor, done = asked.predictor, 0
    plans = {spec: _plan(predictor, spec, asked.points) for spec in asked.syncs}
    total = sum(SEEDS * len(events) + bool(others) for events, others in plans.values())
    for spec, (events, others) in plans.items():
        for point in events:

            def told(point: Point = point, spec: str = spec) -> None:
                nonlocal done
                done += 1
                observe(SimulationPulse(spec, point.nodes, done, total))

            yield predictor.events(spec, point, told)
        if others:
            yield from predictor.formula(spec, others)
            done += 1
            observe(SimulationPulse(spec, others[-1].nodes, done, total))


def _plan(predictor: Predictor, spec: str, points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Return the points to be followed by events, and the others."""
    servers = make_sync(spec).num_servers()
    most = predictor.most_ranks(spec) - servers
    return [point for point in points if point.workers <= most], [point for point in points if point.workers > most]


def _open(out: Path | None, task: str) -> SimulationDir | None:
    """Make the folder of a new simulation; one that cannot be written is a user error."""
    if out is None:
        return None
    stem = Path(task.partition(":")[0]).stem
    folder = SimulationDir(out / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(2)}")
    try:
        folder.path.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write to --out '{out}': {error.strerror}") from None
    return folder


def _record(
    asked: _Asked,
    rows: Sequence[SimulationRow],
    status: Literal["complete", "interrupted"],
    wall_s: float,
    folder: SimulationDir | None,
) -> SimulationRecord:
    predictor, cluster = asked.predictor, asked.predictor.cluster
    known, order = predictor.calibration, {spec: i for i, spec in enumerate(asked.syncs)}
    costs = known.tasks[predictor.task]
    return SimulationRecord(
        id=folder.path.name if folder else "",
        status=status,
        task=predictor.task,
        command=asked.command,
        made=time.strftime("%Y-%m-%d %H:%M:%S"),
        wall_s=wall_s,
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
        rows=sorted(rows, key=lambda row: (order[row.sync], row.workers)),
        machine=known.machine,
        calibrated=known.made,
        versions=facts.versions(),
    )
