"""What advice was asked for: the target, where it may run, and what is looked at."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands import registry, sync, tasks
from manyhands.advice.search import worker_counts
from manyhands.errors import check
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.model.cluster import Cluster
from manyhands.record.calibration import Calibration, read_calibration
from manyhands.request import absolute
from manyhands.simulation.parts import TaskNetwork
from manyhands.simulation.predict import Predictor
from manyhands.simulation.request import read_engines, read_syncs
from manyhands.simulation.simulate import find_calibration
from manyhands.spec import with_field_docs
from manyhands.sync import Sync

INEXACT = "local-sgd:period=8"
"""The inexact strategy that is tried besides all exact ones."""
ON_CLUSTER = "mpi"
"""The engine whose workers may be on several nodes."""
BUDGET_S = 300.0
MOST_WORKERS = 1024
"""On a cluster, unless more are asked for."""


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """What advice is asked for: the options of `manyhands advise`."""

    task: str
    """Built-in task, or FILE.py:VARIABLE."""
    target_accuracy: float
    """Share of the test samples to get right, between 0 and 1."""
    cluster: str | Path | Cluster | None = None
    """Where it shall run: a file, or the name of a ready network; without it, this host."""
    max_cost: float | None = None
    """The most that the training may cost on the cluster."""
    max_workers: int = 0
    """The most workers to use; 0 for the cores of this host, or 1,024 on a cluster."""
    engines: str | Sequence[str] = ""
    """Engines to choose from; without any, those that were calibrated, or mpi on a cluster."""
    syncs: str | Sequence[str] = ""
    """Strategies to choose from; without any, all exact ones and `local-sgd:period=8`."""
    calibration: Path | Calibration | None = None
    """What was measured; without it, the user's own file."""
    budget_s: float = BUDGET_S
    """Seconds after which trainings end."""
    max_epochs: int = 0
    """Epochs after which one worker that has not reached the accuracy is given up; 0 for 5 times the task's own."""
    out: Path | None = None
    """Folder of all advice; without it, nothing is kept."""
    command: str = ""
    """What to type to ask for it again."""

    def __post_init__(self) -> None:
        target = self.target_accuracy
        check(0 < target < 1, f"target-accuracy must be between 0 and 1, such as 0.98, got {target:g}")
        check(self.budget_s > 0, f"budget must be more than 0 seconds, got {self.budget_s:g}")
        check(self.max_epochs >= 0, f"max-epochs must be at least 1, got {self.max_epochs}")


@dataclass(frozen=True)
class CheckedAdvice:
    """A request in which everything was found to be good."""

    task: str
    target: float
    predictors: dict[str, Predictor]
    syncs: list[str]
    counts: list[int]
    limit: str
    """What bounds the number of workers, in words."""
    batch_size: int
    """The task's own."""
    most_replicas: int
    """For which there is memory, where a strategy is inexact, so that n workers are trained as n replicas."""
    max_cost: float | None
    max_epochs: int
    cluster_name: str
    begun_s: float
    """When it was asked, by the clock that measures the whole."""
    until_s: float
    command: str

    @property
    def predictor(self) -> Predictor:
        """Any of them: they differ in the engine only."""
        return next(iter(self.predictors.values()))

    @property
    def cluster(self) -> Cluster | None:
        """Where it shall run; none for this host."""
        return self.predictor.cluster

    @property
    def in_time(self) -> bool:
        """Whether there is time to train more."""
        return time.perf_counter() < self.until_s


def exact_syncs() -> list[str]:
    """List the strategies whose answer is one worker's; the simplest first."""
    names = registry.names(sync, Sync)
    return sorted((name for name in names if sync.make(name).exact), key=lambda name: (name != "allreduce", name))


def choose_syncs(given: str | Sequence[str]) -> list[str]:
    """Return the strategies that are meant; of an inexact one a short training must tell the steps."""
    if not given:
        return [*exact_syncs(), INEXACT]
    found = read_syncs(given)
    for spec in found:
        strategy = sync.make(spec)
        check(
            strategy.exact or (strategy.apart and strategy.lockstep),
            f"advise cannot tell how many steps '{spec}' takes; "
            f"'manyhands simulate --train' can, for one number of workers at a time",
        )
    return found


def choose_engines(given: str | Sequence[str], known: Calibration, task: str, cluster: Cluster | None) -> list[str]:
    """Return the engines that are meant: on this host those that were calibrated, on a cluster MPI."""
    if given:
        engines = read_engines(given)
        check(
            cluster is None or "threads" not in engines or cluster.nodes == 1,
            "engine threads runs on one node; a cluster needs mpi or torch",
        )
        return engines
    return (known.engines(absolute(task)) or [ON_CLUSTER]) if cluster is None else [ON_CLUSTER]


def make_predictors(
    task: str, engines: str | Sequence[str], given: Path | Calibration | None, cluster: Cluster | None
) -> dict[str, Predictor]:
    """Make one for each engine, all from the same calibration."""
    tasks.load(task)
    known = given if isinstance(given, Calibration) else _read(given, absolute(task))
    chosen = choose_engines(engines, known, task, cluster)
    found = [find_calibration(given, task, engine) for engine in chosen]
    for engine, (each, _) in zip(chosen, found, strict=True):
        check(
            cluster is not None or not each.comms[engine].apart,
            "the calibration is of a network between hosts; give --cluster, or a calibration of this host alone",
        )
    network = TaskNetwork(task, known.made, found[0][1])
    network.check_calibrated(known)
    return {
        engine: Predictor(each, network, engine, cluster, way="formula")
        for engine, (each, _) in zip(chosen, found, strict=True)
    }


def _read(path: Path | None, task: str) -> Calibration:
    return read_calibration(path or calibration_path(), task, named=path is not None)


def choose_counts(cluster: Cluster | None, max_workers: int) -> tuple[list[int], str]:
    """Return the numbers of workers to look at, and what bounds them."""
    check(max_workers >= 0, f"max-workers must be at least 1, got {max_workers}")
    if cluster is None:
        room, limit, node_size = facts.cores(), f"this host has {facts.cores()} cores", 1
    else:
        room, limit, node_size = cluster.max_ranks, f"the cluster has room for {cluster.max_ranks:,}", cluster.node_size
        if room > MOST_WORKERS and not max_workers:
            room, limit = MOST_WORKERS, f"no more than {MOST_WORKERS:,} were looked at; --max-workers allows more"
    if max_workers and max_workers < room:
        room, limit = max_workers, f"--max-workers is {max_workers:,}"
    return worker_counts(room, min(node_size, room)), limit


def check_cost(max_cost: float | None, cluster: Cluster | None) -> None:
    """Refuse a bound on what has no price."""
    if max_cost is None:
        return
    check(max_cost > 0, f"max-cost must be more than 0, got {max_cost:g}")
    check(cluster is not None, "--max-cost needs a --cluster, whose file has a price_per_hour")
    check(
        cluster is not None and cluster.price_per_hour > 0,
        "--max-cost needs a price: give the cluster's file a price_per_hour",
    )
