"""Closed forms of step times, for more ranks or configurations than discrete events can simulate.

Where ranks meet in collective calls, the code of one rank tells which: it runs alone, with the expected compute of the
slowest rank, and every call takes its cost among all ranks. All numbers of workers for which the code is the same are
evaluated at once: the rank's clock is an array.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from manyhands.model.crowd import StepTimes
from manyhands.model.hierarchy import call_s
from manyhands.model.links import Floats
from manyhands.model.machine import STEPS, CalibratedMachine
from manyhands.model.slowest import Slowest, correlated_levels
from manyhands.replica.meta import Paces
from manyhands.simulation.solo import SoloComm
from manyhands.training.meter import flush_every
from manyhands.virtual.events import RankLog, Scene, StepSplit, VirtualRank, cycle

Ints = npt.NDArray[np.int64]

SUMS = 4000
"""Sums of successive steps that are drawn to estimate their distribution."""
MOST_SUMMED = 500
"""Steps per sum; the slowest of longer sums differs little from the mean."""
MOST_PLACES = 48
"""Numbers of workers that are evaluated one by one; between them results are interpolated linearly."""
SHORT = 64
"""Steps of an epoch up to which it is simulated as a whole."""


@dataclass(frozen=True)
class AlikeCounts:
    """Numbers of workers with the same step times: equal rows per worker, and equally many workers per node."""

    scene: Scene
    """That of the smallest number of workers."""
    workers: Ints
    busy: Ints
    """Workers that have any rows."""
    steps_per_epoch: Ints
    """All above `SHORT`, or all equal."""
    machine: CalibratedMachine
    """That of any of the numbers."""
    times: StepTimes
    """Of the worker with the most rows, on a core of the calibrated machine."""

    @property
    def serial_s(self) -> float:
        """Mean time of the optimiser's step and the loop."""
        return float(self.times.serial_s.mean()) / self.machine.cluster.core_speed

    @property
    def update_s(self) -> float:
        """Mean time of the optimiser's step."""
        return self.machine.update_share * self.serial_s

    @property
    def usual_s(self) -> float:
        """Mean time of a step without its exchange."""
        return float(self.times.whole_s.mean()) / self.machine.cluster.core_speed

    @property
    def steps_per_flush(self) -> float:
        """Steps after which the workers of a real run flush their meters."""
        return flush_every(self.scene.strategy.meet_s(), self.usual_s)

    def without_exchange_s(self, in_a_row: int, parted: float = 0.0) -> Floats:
        """Return the step time, without its exchange, of the worker that is slowest over `in_a_row` steps.

        With 0, return the mean over all workers. In a share `parted` of the steps the ranks wait for the slowest
        compute and then, separately, for the slowest rest.
        """
        if in_a_row == 0:
            return self.usual_s * self.slowness()
        whole = self._slowest_s(_mean_of(Slowest.of(self.times.whole_s), in_a_row, self.machine.persistence))
        if parted == 0:
            return whole
        compute, rest = (self._slowest_s(Slowest.of(part)) for part in (self.times.compute_s, self.times.serial_s))
        return whole + parted * np.maximum(0.0, compute + rest - whole)

    def _slowest_s(self, distribution: Slowest) -> Floats:
        places = sample(len(self.busy)) if len(self.busy) > MOST_PLACES else np.arange(len(self.busy))
        known = distribution.expected_on_s(self.machine.cluster, self.busy[places])
        # Between them the maximum grows with the logarithm of the workers.
        return np.interp(np.log(self.busy), np.log(self.busy[places]), known)

    def slowness(self) -> Floats:
        """Return the mean slow-down of the workers' compute due to slow nodes."""
        cluster = self.machine.cluster
        if not cluster.slow:
            return np.ones(len(self.busy))
        return np.array([float(cluster.slowness(int(p)).mean()) * cluster.core_speed for p in self.busy])

    def call_s(self, call: str, num_bytes: float) -> Floats:
        """Return the cost of a call among all workers."""
        machine = self.machine
        if machine.on_host:
            return np.array([machine.call_s(call, int(p), num_bytes) for p in self.workers])
        messages_s = call_s(call, self.workers, num_bytes, machine.cluster, machine.gamma_s_per_byte)
        return messages_s + np.where(self.workers > 1, machine.launch_s, 0.0)

    def at(self, i: int) -> "AlikeCounts":
        """Return the i-th number of workers alone."""
        here = slice(i, i + 1)
        scene = replace(self.scene, workers=int(self.workers[i]), steps_per_epoch=int(self.steps_per_epoch[i]))
        parts = {name: getattr(self, name)[here] for name in ("workers", "busy", "steps_per_epoch")}
        return replace(self, scene=scene, **parts)


class Closed(NamedTuple):
    """Step times by closed form."""

    splits: list[StepSplit]
    """One for each number of workers."""
    in_a_row: int
    """Steps after which ranks wait for the slowest; 0 where a rank waits for some others at most."""
    parted: float = 0.0
    """Share of the steps in which ranks wait for the slowest compute, and then for the slowest rest."""


def meetings(series: AlikeCounts) -> Closed:
    """Return the step times of a strategy whose ranks exchange by collective calls alone."""
    if len(series.workers) > 1 and _depends_on_size(series):
        results = [meetings(series.at(int(i))) for i in sample(len(series.workers))]
        splits = between(series, [result.splits[0] for result in results])
        return Closed(splits, results[0].in_a_row, results[0].parted)
    steps = cycle(series.scene.strategy, series.scene.steps_per_epoch, SHORT)
    comm, log = _run_alone(series, steps, 0.0)
    num_calls = len(log.calls_s) - steps  # besides its collective calls, a step has one entry for its messages
    apart = min(max(1.0, steps / num_calls) if num_calls else math.inf, series.steps_per_flush)
    in_a_row = round(min(apart, float(series.steps_per_epoch[0])))
    parted = 0.0
    if num_calls >= steps and steps % series.scene.steps_per_epoch == 0 and series.serial_s > 0:
        # At the end of an epoch the workers meet once more, after their own work since the step's last call.
        meeting = max(i for i, (call, _) in enumerate(comm.calls) if call == "all-gather")
        parted = min(1.0, float(np.max(comm.before_s[meeting])) / series.serial_s) / series.scene.steps_per_epoch
    slowest = series.without_exchange_s(in_a_row, parted)
    _, log = _run_alone(series, steps, slowest - series.serial_s)
    return Closed(_splits(series, log, steps, slowest), in_a_row, parted)


def sample(count: int) -> Ints:
    """Return at most `MOST_PLACES` of the indices below `count`, with the first and the last, denser at the start."""
    return np.unique(np.round(np.geomspace(1, count, min(count, MOST_PLACES))).astype(np.int64)) - 1


def between(series: AlikeCounts, splits: Sequence[StepSplit]) -> list[StepSplit]:
    """Interpolate linearly between the numbers of workers that `sample` chose."""
    if len(splits) == len(series.workers):
        return list(splits)
    known = series.workers[sample(len(series.workers))]
    lines = [np.interp(series.workers, known, part) for part in zip(*map(astuple, splits), strict=True)]
    return [StepSplit(*parts) for parts in np.transpose(lines).tolist()]


def _depends_on_size(series: AlikeCounts) -> bool:
    """Return whether one rank's calls, or the bytes it processes, change with the number of workers."""
    runs = [_run_alone(series.at(i), 1, 0.0) for i in (0, len(series.workers) - 1)]
    calls = [comm.calls for comm, _ in runs]
    rest = [float(np.max(log.ended_s - log.begun_s - log.met_s - sum(log.calls_s))) for _, log in runs]
    return calls[0] != calls[1] or not math.isclose(*rest, rel_tol=1e-9, abs_tol=1e-12)


def _run_alone(series: AlikeCounts, steps: int, compute_s: Any) -> tuple[SoloComm, RankLog]:
    machine = series.machine
    comm = SoloComm(series.scene.workers, series.call_s)
    touch_s = machine.touch_s_per_byte / machine.cluster.core_speed
    paces = Paces(
        lambda: compute_s, lambda share: share * series.update_s, lambda: series.serial_s - series.update_s, touch_s
    )
    rank = VirtualRank(series.scene, paces, comm, comm.advance, series.usual_s)
    return comm, rank.run(0, steps)


def _splits(series: AlikeCounts, log: RankLog, steps: int, slowest: Floats) -> list[StepSplit]:
    """Split the mean step over all workers, given the log of one that computes as long as the slowest."""
    waits = np.maximum(0.0, slowest - series.usual_s * series.slowness())
    epoch_end_s = np.asarray(log.epoch_end_s) / series.steps_per_epoch
    comm_s, met_s = np.asarray(sum(log.calls_s)) / steps + epoch_end_s, np.asarray(log.met_s) / steps
    compute_s = np.asarray(log.compute_s) / steps
    step_s = np.asarray(log.ended_s - log.begun_s) / steps + epoch_end_s
    serial_s = step_s - comm_s - met_s - compute_s
    columns = np.broadcast_arrays(compute_s - waits, serial_s, comm_s, met_s + waits, slowest)[:4]
    return [StepSplit(*parts) for parts in np.transpose(columns).tolist()]


def _mean_of(distribution: Slowest, steps: int, persistence: float) -> Slowest:
    """Return the distribution of the mean of `steps` successive steps, which are correlated by `persistence`."""
    if steps <= 1:
        return distribution
    random, blocks = np.random.default_rng(0), -(-min(steps, MOST_SUMMED) // STEPS)
    levels = correlated_levels(random, (SUMS * blocks, min(steps, STEPS)), persistence)
    return Slowest.of(distribution.quantile_s(levels).reshape(SUMS, -1).mean(axis=1))
