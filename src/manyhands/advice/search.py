"""Every combination of engine, strategy, workers and batch that advice considers, with the predicted time of a step."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from manyhands import launch
from manyhands.advice.noise_scale import CriticalBatch
from manyhands.advice.request import CheckedAdvice
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.request import WorkerCount
from manyhands.simulation.solo import NoClosedForm
from manyhands.sync import Sync
from manyhands.sync.base import make as make_sync

SMALLEST = 0.25
"""Smallest batch to consider, as a share of the critical batch, or of the task's own where that is smaller."""
SERIAL = "serial"
"""The engine of one worker."""


class Candidate(NamedTuple):
    """A combination of engine, strategy, workers and batch; `predicted` has its step."""

    engine: str
    predicted: Predicted


def batches(usual: int, critical: CriticalBatch, samples: int) -> list[int]:
    """Return the batches to consider: the task's `usual` one, halved and doubled, up to the critical batch."""
    limit = max(1.0, critical.known_rows)
    least, most = max(1.0, SMALLEST * min(usual, limit)), min(samples, max(usual, limit))
    sizes = {usual >> k for k in range(usual.bit_length())} | {usual << k for k in range(samples.bit_length())}
    return sorted(size for size in sizes if size == usual or least <= size <= most)


def candidates(
    checked: CheckedAdvice, sizes: Sequence[int], observe: Callable[[int, int], None] = lambda done, total: None
) -> list[Candidate]:
    """Predict a step of every combination with the batches `sizes`; one worker needs neither engine nor strategy.

    Inexact strategies are considered with at most `checked.most_replicas` workers. `observe` is told how many pairs of
    engine and strategy are done, of how many.
    """
    first = checked.predictor
    alone = [WorkerCount(1, 1, size, first.network.samples) for size in sizes]
    combinations = [Candidate(SERIAL, step) for step in _predict(first, make_sync("allreduce"), alone)]
    strategies = [make_sync(spec) for spec in checked.syncs]
    pairs = [
        (engine, strategy)
        for engine in checked.predictors
        for strategy in strategies
        if strategy.requires <= launch.make(engine).features
    ]
    for done, (engine, strategy) in enumerate(pairs):
        observe(done, len(pairs))
        predictor = checked.predictors[engine]
        counts = [n for n in checked.counts if strategy.exact or n <= checked.most_replicas]
        points = list(_points(predictor, strategy, counts, sizes))
        combinations += [Candidate(engine, step) for step in _predict(predictor, strategy, points)]
    return combinations


def _points(predictor: Predictor, strategy: Sync, counts: Sequence[int], sizes: Sequence[int]) -> Iterator[WorkerCount]:
    servers, cluster = strategy.num_servers(), predictor.cluster
    most = cluster.max_ranks if cluster else max(counts, default=0)
    for workers in counts:
        nodes = int(cluster.nodes_of(workers + servers)) if cluster else 1
        if workers > 1 and workers + servers <= most:
            for size in sizes:
                if workers <= size:
                    yield WorkerCount(nodes, workers, size, predictor.network.samples)


def _predict(predictor: Predictor, strategy: Sync, points: Sequence[WorkerCount]) -> list[Predicted]:
    """Predict by closed form; nothing of a strategy that has none."""
    try:
        return list(predictor.formula(strategy, points)) if points else []
    except NoClosedForm:
        return []
