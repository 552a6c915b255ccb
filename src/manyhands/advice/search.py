"""The ways to train that advice chooses from: engines, strategies, workers and batches, each with its step's time."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from manyhands import launch
from manyhands.advice.noise_scale import CriticalBatch
from manyhands.model.cluster import Cluster
from manyhands.record.simulation import Estimate
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.request import WorkerCount
from manyhands.simulation.rows import with_failures
from manyhands.simulation.solo import NoClosedForm
from manyhands.simulation.spread import estimate
from manyhands.sync import Sync
from manyhands.sync.base import make as make_sync

SMALLEST = 0.25
"""Of the critical batch, or of the task's own where that is smaller: the smallest batch that is looked at."""
SERIAL = "serial"
"""The engine of one worker."""


@dataclass(frozen=True)
class Candidate:
    """A way to train, and what its steps take."""

    engine: str
    found: Predicted

    @property
    def sync(self) -> str:
        """The strategy's spec string."""
        return self.found.sync

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.found.point.workers

    @property
    def batch_size(self) -> int:
        """The global batch."""
        return self.found.point.batch_size

    @property
    def step_s(self) -> Estimate:
        """Seconds of a step, predicted."""
        return estimate(self.found.split.step_s, self.found.drawn_s, self.found.share)


def worker_counts(most: int, node_size: int = 1) -> list[int]:
    """Return the numbers of workers to look at, each twice the one before: those of one node, then of whole nodes."""
    inside = _doubled(min(most, node_size))
    return sorted({*inside, *(node_size * nodes for nodes in _doubled(most // node_size))})


def _doubled(most: int) -> list[int]:
    return sorted({*(1 << k for k in range(most.bit_length())), *([most] if most else [])})


def batches(own: int, critical: CriticalBatch, samples: int) -> list[int]:
    """Return the batches to look at: the task's own, halved and doubled, the largest within the critical batch."""
    limit = max(1.0, critical.rows if critical.rows is not None else critical.low)
    least, most = SMALLEST * min(own, limit), min(samples, max(own, limit))
    found, now = {own}, own
    while now // 2 >= max(1.0, least):
        now //= 2
        found.add(now)
    now = own
    while 2 * now <= most:
        now *= 2
        found.add(now)
    return sorted(found)


def candidates(
    predictors: Mapping[str, Predictor],
    syncs: Sequence[str],
    counts: Sequence[int],
    sizes: Sequence[int],
    told: Callable[[int, int], None] = lambda done, total: None,
    most_replicas: float = math.inf,
) -> list[Candidate]:
    """Predict the step of every way to train that is possible; one worker needs neither engine nor strategy.

    Of an inexact strategy, more workers than `most_replicas` are left out.
    """
    first = next(iter(predictors.values()))
    alone = _predict(first, make_sync("allreduce"), [WorkerCount(1, 1, size, first.network.samples) for size in sizes])
    found = [Candidate(SERIAL, each) for each in alone]
    strategies = [make_sync(spec) for spec in syncs]
    pairs = [(engine, each) for engine in predictors for each in strategies if _can_run(engine, each)]
    for done, (engine, strategy) in enumerate(pairs):
        told(done, len(pairs))
        predictor = predictors[engine]
        fit = [n for n in counts if strategy.exact or n <= most_replicas]
        points = list(_points(predictor, strategy, fit, sizes))
        found += [Candidate(engine, each) for each in _predict(predictor, strategy, points)]
    return found


def _can_run(engine: str, strategy: Sync) -> bool:
    return strategy.requires <= launch.make(engine).features


def _points(predictor: Predictor, strategy: Sync, counts: Iterable[int], sizes: Iterable[int]) -> Iterator[WorkerCount]:
    servers, cluster = strategy.num_servers(), predictor.cluster
    most = cluster.max_ranks if cluster else max(counts, default=0)
    for workers in counts:
        nodes = int(cluster.nodes_of(workers + servers)) if cluster else 1
        if workers > 1 and workers + servers <= most:
            for size in sizes:
                if workers <= size:
                    yield WorkerCount(nodes, workers, size, predictor.network.samples)


def _predict(predictor: Predictor, strategy: Sync, points: Sequence[WorkerCount]) -> list[Predicted]:
    """Predict by closed form; a strategy that has none is not looked at."""
    try:
        return list(predictor.formula(strategy, points)) if points else []
    except NoClosedForm:
        return []


def time_to(candidate: Candidate, steps: Estimate, cluster: Cluster | None) -> Estimate:
    """Return what so many steps take, with failures where the cluster has some."""
    sound = product(steps, candidate.step_s)
    ranks = candidate.workers + candidate.found.servers
    return with_failures(sound, ranks, cluster)[0]


def cost_of(candidate: Candidate, time_s: Estimate, cluster: Cluster | None) -> Estimate | None:
    """Return what so long a run costs, where there is a price."""
    if cluster is None or cluster.price_per_hour == 0:
        return None
    return time_s.scaled(float(cluster.price(candidate.workers + candidate.found.servers, 1.0)))


def product(a: Estimate, b: Estimate) -> Estimate:
    """Multiply what has nothing to do with each other: the squares of the shares that either may be off add up."""
    value = a.value * b.value
    below = math.hypot(1 - a.low / a.value, 1 - b.low / b.value)
    above = math.hypot(a.high / a.value - 1, b.high / b.value - 1)
    return Estimate(value=value, low=max(0.0, value * (1 - below)), high=value * (1 + above))


def quotient(a: Estimate, b: Estimate) -> Estimate:
    """Return a / b, with the interval that independent relative errors give."""
    low = max(b.low, b.value**2 / b.high)  # where an interval reaches to nothing, by the factor of its upper end
    return product(a, Estimate(value=1 / b.value, low=1 / b.high, high=1 / low))
