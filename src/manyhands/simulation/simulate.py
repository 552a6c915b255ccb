"""Predict how a task would scale on nodes that need not exist, from measurements on one machine."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

from manyhands import launch, tasks
from manyhands.calibration.busy import say_if_busy
from manyhands.calibration.engines import MODELS
from manyhands.errors import ManyhandsError, check, unknown
from manyhands.launch.environment import outer_world
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.record.calibration import (
    Calibration,
    calibrate_command,
    check_device,
    differences,
    read_calibration,
)
from manyhands.record.run import Pulse
from manyhands.record.simulation import SimulationDir, SimulationRecord, SimulationRow, TrainedRow
from manyhands.record.store import stem_of, write_record
from manyhands.request import absolute
from manyhands.simulation.devices import by_formula, check_strategies, engine_on
from manyhands.simulation.parts import TaskNetwork
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.present import GivenProbe, present_calibration
from manyhands.simulation.request import (
    MOST_FOLLOWED,
    SUCH_HOSTS,
    THIS_HOST,
    SimulationRequest,
    WorkerCount,
    check_batch,
    find_cluster,
    find_way,
    read_syncs,
)
from manyhands.simulation.rows import Alone, make_rows
from manyhands.simulation.spread import SEEDS
from manyhands.simulation.train import RowTraining
from manyhands.sync import Sync
from manyhands.sync.base import make as make_sync


@dataclass(frozen=True)
class SimulationPulse:
    """The progress of a simulation."""

    sync: str
    number: int
    """Of nodes or workers, whichever was requested."""
    done: float
    total: int
    """Simulations by events and strategies by closed form; then trainings."""
    trains: bool = False
    """Whether all rows are predicted and are now trained."""
    accuracy: float | None = None
    """At the last evaluation."""
    left_s: float | None = None
    """Estimated real seconds until the current training ends."""


Observer = Callable[[SimulationPulse], None]


def simulate(
    task: str,
    nodes: str | int | Sequence[int] | None = None,
    *,
    observe: Observer = lambda pulse: None,
    say: Callable[[str], None] = lambda sentence: None,
    probe: GivenProbe = None,
    **options: Any,
) -> SimulationRecord:
    """Predict step time, speed-up, efficiency and cost; without a cluster, of this host with as many cores as workers.

    >>> simulate("mlp", [1, 2, 64], syncs="allreduce,local-sgd:period=8", cluster="ethernet-1g")  # doctest: +SKIP

    task: What to train.
    nodes: Numbers of nodes; either these or `workers`.
    observe: Called with a `SimulationPulse` after each prediction, and while rows are trained.
    say: Called with sentences that a user should read.
    probe: The state of this machine, to compare with the calibration's; without it, it is measured in two seconds.
    options: The other fields of a `SimulationRequest`: workers, syncs, cluster, calibration, engine, batch_size, …
    """
    begun = time.perf_counter()
    check(outer_world() is None, "simulate needs no real workers; run it without mpiexec, srun or torchrun")
    request = SimulationRequest(task=task, nodes=nodes, **options)
    simulation = _prepare(request, say, observe, probe, begun)
    where = nullcontext() if request.out is None else SimulationDir.kept_if_used(request.out, stem_of(task))
    with where as folder:
        simulation.folder = folder
        return simulation.run()


def _prepare(
    request: SimulationRequest, say: Callable[[str], None], observe: Observer, probe: GivenProbe, begun: float
) -> "_Simulation":
    """Check a request; load its calibration and network."""
    cluster, cluster_name = find_cluster(request.cluster)
    counts, task, device = request.counts(), request.task, request.device
    engine = engine_on(device, request.engine)
    strategies = [make_sync(spec) for spec in read_syncs(request.syncs)]
    way = find_way(request.method, len(counts) * len(strategies))
    check_strategies(strategies, device, launch.make(engine).features)
    calibration, path = find_calibration(request.calibration, task, engine, device)
    if cluster is None and calibration.comms[engine].apart:
        cluster_name = SUCH_HOSTS
    for sentence in differences(calibration, facts.hardware(), facts.versions()):
        say(sentence)
    calibration, circumstances = present_calibration(calibration, absolute(task), [engine], probe, say)
    say_if_busy(calibration, say)
    network = TaskNetwork(task, calibration.made, path)
    network.check_calibrated(calibration)
    per_worker = request.batch_per_worker
    batch_size = check_batch(request.batch_size, per_worker, network.config.batch_size, network.samples)
    one_node = cluster_name == THIS_HOST and request.by == "workers"  # all workers of this host are on one node
    node_size = cluster.node_size if cluster is not None else max(counts) if one_node else 1
    points = request.points(node_size, batch_size, network.samples)
    if per_worker and (cut := [point for point in points if per_worker * point.workers > network.samples]):
        who, samples = f"{cut[0].number:,} {request.by}", f"{network.samples:,} samples"
        say(f"from {who} on a step has all {samples}, which is less than {per_worker:,} a worker")
    predictor = Predictor(calibration, network, engine, cluster, request.seed, request.steps, way)
    for strategy in strategies:
        predictor.check(strategy, points)
    training, warnings = None, list[str]()
    formula = by_formula(calibration, engine) if cluster is None and max(counts) > 1 else ""
    if request.train is not None:
        training = RowTraining(predictor, task, dict(request.train), request.target_accuracy)
        warnings = training.check(strategies, points)
    warnings += [formula] if formula else []
    for sentence in warnings:
        say(sentence)
    alone = Alone.of(predictor, per_worker or batch_size)
    return _Simulation(
        predictor,
        strategies,
        points,
        alone,
        training,
        warnings,
        cluster_name,
        circumstances,
        request.command,
        begun,
        observe,
    )


def find_calibration(
    given: Path | Calibration | None, task: str, engine: str, device: str = "cpu"
) -> tuple[Calibration, Path | None]:
    """Return the requested calibration, and the file of parts measured with it."""
    tasks.load(task)
    if engine not in MODELS:
        unknown("engine that can be calibrated", engine, MODELS)
    name = absolute(task)
    if isinstance(given, Calibration):
        command = calibrate_command(name, device)
        check_device(given, name, device)
        check(name in given.tasks, f"task '{name}' is not calibrated; run '{command}'")
        again = f"{command} --engines {engine}"
        check(engine in given.engines(name), f"engine {engine} is not calibrated with task '{name}'; run '{again}'")
        return given, None
    path = given or calibration_path(device)
    parts = path.with_name(f"{path.stem}.parts.json")
    return read_calibration(path, name, engine, named=given is not None, device=device), parts


@final
@dataclass
class _Simulation:
    """A checked request, and its results so far."""

    predictor: Predictor
    strategies: list[Sync]
    points: list[WorkerCount]
    alone: Alone
    training: RowTraining | None
    warnings: list[str]
    cluster_name: str
    circumstances: str
    command: str
    begun: float
    observe: Observer
    folder: SimulationDir | None = None
    rows: list[tuple[Sync, WorkerCount, SimulationRow]] = field(default_factory=list)
    """Strategy by strategy, and the fewest workers first."""
    trained: list[TrainedRow] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> SimulationRecord:
        """Predict, then train; if interrupted, keep the results so far."""
        try:
            self._predict()
            self._train()
            return self._keep("complete")
        except KeyboardInterrupt:
            return self._keep("interrupted")

    def _predict(self) -> None:
        """Predict every strategy at every point: by events where there are few enough ranks, else by closed form."""
        predictor, done, plans = self.predictor, 0, []
        for strategy in self.strategies:
            most = predictor.most_ranks(strategy) - strategy.num_servers()
            events = [point for point in self.points if point.workers <= most]
            plans.append((strategy, events, [point for point in self.points if point.workers > most]))
        total = sum(SEEDS * len(events) + bool(others) for _, events, others in plans)

        def count(strategy: Sync, point: WorkerCount) -> None:
            nonlocal done
            done += 1
            self.observe(SimulationPulse(strategy.text, point.number, done, total))

        for strategy, events, others in plans:
            for point in events:
                self._add(strategy, [predictor.events(strategy, point, partial(count, strategy, point))])
            if others:
                predictions = predictor.formula(strategy, others)
                self._add(strategy, sorted(predictions, key=lambda predicted: predicted.point.workers))
                count(strategy, others[-1])

    def _add(self, strategy: Sync, predictions: Sequence[Predicted]) -> None:
        for predicted, row in zip(predictions, make_rows(predictions, self.alone, self.predictor.cluster), strict=True):
            self.rows.append((strategy, predicted.point, row))

    def _train(self) -> None:
        """Train every row, if requested; store each result at once, since trainings are long."""
        if self.training is None:
            return
        path = self.folder.path if self.folder else None

        def tell(i: int, row: SimulationRow, pulse: Pulse) -> None:
            done, total = i + pulse.step / pulse.steps, len(self.rows)
            state = {"accuracy": pulse.accuracy, "left_s": pulse.eta_s}
            self.observe(SimulationPulse(row.sync, row.number, done, total, trains=True, **state))

        for i, (strategy, point, row) in enumerate(self.rows):
            try:
                self.trained.append(self.training.run(strategy, point, row, path, partial(tell, i, row)))
            except ManyhandsError as error:
                self.failed[f"{row.sync} on {row.number:,}"] = str(error)
            self._keep("interrupted")

    def _keep(self, status: Literal["complete", "interrupted"]) -> SimulationRecord:
        """Return the record of the results so far, and write it if there is a folder."""
        predictor, cluster = self.predictor, self.predictor.cluster
        calibration = predictor.calibration
        costs = calibration.tasks[predictor.task]
        record = SimulationRecord(
            id=self.folder.path.name if self.folder else "",
            status=status,
            task=predictor.task,
            command=self.command,
            made=time.strftime("%Y-%m-%d %H:%M:%S"),
            wall_s=time.perf_counter() - self.begun,
            engine=predictor.engine,
            device=calibration.device,
            cluster=self.cluster_name,
            seed=predictor.seed,
            steps=predictor.steps,
            parameters=costs.parameters,
            weight_bytes=costs.weight_bytes,
            samples=predictor.network.samples,
            currency=cluster.currency if cluster and cluster.price_per_hour else "",
            alone_ms=self.alone.step_ms,
            alone_batch=self.alone.batch_size,
            rows=[row for _, _, row in self.rows],
            target_accuracy=self.training.target_accuracy if self.training else None,
            trained=self.trained,
            failed=self.failed,
            warnings=self.warnings,
            machine=calibration.machine,
            calibrated=calibration.made,
            circumstances=self.circumstances,
            versions=facts.versions(),
        )
        if self.folder is not None:
            indent = 2 if len(record.rows) <= MOST_FOLLOWED else None  # nobody reads very many rows line by line
            write_record(self.folder.record, record, indent=indent)
        return record
