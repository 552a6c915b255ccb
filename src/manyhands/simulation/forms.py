"""The time of a step by formula, for more ranks or configurations than events can do.

Where ranks meet in calls that all make together, one rank's own code tells which: it is run alone, with the compute
that is expected of the slowest rank, and every call takes what it costs among all. All numbers of workers for which the
code is the same are worked on at once: the rank's clock is an array.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from manyhands.model.closed_form import slowest_s
from manyhands.model.crowd import StepTimes
from manyhands.model.hierarchy import call_s
from manyhands.model.links import Floats
from manyhands.model.machine import STEPS, CalibratedMachine
from manyhands.model.slowest import Slowest
from manyhands.replica.meta import Paces
from manyhands.simulation.solo import SoloComm
from manyhands.virtual.events import RankLog, Scene, StepSplit, VirtualRank, cycle, meet_every

Ints = npt.NDArray[np.int64]

SUMS = 4000
"""Sums of several steps that are drawn, to tell the slowest of them."""
MOST_SUMMED = 500
"""Steps in a sum; of longer ones the slowest differs little from the mean."""
MOST_PLACES = 48
"""Numbers of workers that are worked out one by one; between more of them a line is good enough."""
SHORT = 64
"""Steps of an epoch that is followed as a whole."""


@dataclass(frozen=True)
class AlikeCounts:
    """Numbers of workers whose steps take alike: as many rows each, and as many of them on a node."""

    scene: Scene
    """That of the fewest workers."""
    workers: Ints
    busy: Ints
    """Workers that have any rows."""
    steps_per_epoch: Ints
    """All above `SHORT`, or all the same."""
    machine: CalibratedMachine
    """Of any of them."""
    times: StepTimes
    """Of one worker with the most rows, on a core of the calibrated machine."""
    on_host: bool
    """Whether it is the calibrated machine itself whose calls were measured."""

    @property
    def serial_s(self) -> float:
        """The optimiser's step and the loop, on average."""
        return float(self.times.serial_s.mean()) / self.machine.cluster.core_speed

    @property
    def update_s(self) -> float:
        """The optimiser's step, on average."""
        return self.machine.update_share * self.serial_s

    @property
    def usual_s(self) -> float:
        """A worker's step without its exchange, on average."""
        return float(self.times.whole_s.mean()) / self.machine.cluster.core_speed

    def own_s(self, in_a_row: int, parted: float = 0.0) -> Floats:
        """Return a step without its exchange: of the worker that is slowest over so many; with 0, of all on average.

        In a share of the steps, `parted`, the slowest compute is waited for, and then the slowest rest.
        """
        if in_a_row == 0:
            return self.usual_s * self.slowness()
        whole = self._slowest_s(_mean_of(Slowest.of(self.times.whole_s), in_a_row, self.machine.persistence))
        if parted == 0:
            return whole
        compute, rest = (self._slowest_s(Slowest.of(each)) for each in (self.times.compute_s, self.times.serial_s))
        return whole + parted * np.maximum(0.0, compute + rest - whole)

    def _slowest_s(self, one: Slowest) -> Floats:
        """Return what the slowest worker takes."""
        places = sample(len(self.busy)) if len(self.busy) > MOST_PLACES else np.arange(len(self.busy))
        known = slowest_s(self.busy[places], one, self.machine.cluster)
        # Between these the slowest grows with the logarithm of the workers.
        return np.interp(np.log(self.busy), np.log(self.busy[places]), known)

    def slowness(self) -> Floats:
        """Return how many times as long as one on a sound node the workers compute, on average over them."""
        cluster = self.machine.cluster
        if not cluster.slow:
            return np.ones(len(self.busy))
        return np.array([float(cluster.slowness(int(p)).mean()) * cluster.core_speed for p in self.busy])

    def call_s(self, call: str, num_bytes: float) -> Floats:
        """Return what a call takes among all workers."""
        machine = self.machine
        if self.on_host:
            return np.array([machine.call_s(call, int(p), num_bytes) for p in self.workers])
        return call_s(call, self.workers, num_bytes, machine.cluster, machine.gamma_s_per_byte)

    def at(self, i: int) -> "AlikeCounts":
        """Return the i-th number of workers alone."""
        here = slice(i, i + 1)
        scene = replace(self.scene, workers=int(self.workers[i]), steps_per_epoch=int(self.steps_per_epoch[i]))
        parts = {name: getattr(self, name)[here] for name in ("workers", "busy", "steps_per_epoch")}
        return replace(self, scene=scene, **parts)


class Closed(NamedTuple):
    """The times of a step that formulas give."""

    splits: list[StepSplit]
    """For each number of workers."""
    in_a_row: int
    """Steps after which the ranks wait for the slowest; 0 where each waits for no more than some others."""
    parted: float = 0.0
    """Share of the steps in which they wait for the slowest compute, and then for the slowest rest."""


def meetings(series: AlikeCounts) -> Closed:
    """Return where the time of a step goes, for a strategy whose ranks meet in calls."""
    if len(series.workers) > 1 and _depends_on_size(series):
        found = [meetings(series.at(int(i))) for i in sample(len(series.workers))]
        return Closed(between(series, [each.splits[0] for each in found]), found[0].in_a_row, found[0].parted)
    strategy = series.scene.strategy
    steps = cycle(strategy, series.scene.steps_per_epoch, SHORT)
    comm, seen = _run_alone(series, steps, 0.0)
    met = len(seen.calls_s) - steps  # beside its collective calls, a step has one entry for its messages
    apart = min(max(1.0, steps / met) if met else math.inf, meet_every(strategy, series.usual_s))
    in_a_row = round(min(apart, float(series.steps_per_epoch[0])))
    parted = 0.0
    if met >= steps and steps % series.scene.steps_per_epoch == 0 and series.serial_s > 0:
        # At the end of an epoch the workers meet once more, after what each does by itself since the step's last call.
        meeting = max(i for i, (call, _) in enumerate(comm.calls) if call == "all-gather")
        parted = min(1.0, float(np.max(comm.before_s[meeting])) / series.serial_s) / series.scene.steps_per_epoch
    slowest = series.own_s(in_a_row, parted)
    log = _run_alone(series, steps, slowest - series.serial_s)[1]
    return Closed(_splits(series, log, steps, slowest), in_a_row, parted)


def sample(count: int) -> Ints:
    """Return the places of some of so many, the first and the last among them, and more of the first ones."""
    return np.unique(np.round(np.geomspace(1, count, min(count, MOST_PLACES))).astype(np.int64)) - 1


def between(series: AlikeCounts, found: Sequence[StepSplit]) -> list[StepSplit]:
    """Put straight lines between some numbers of workers, which are those of `sample`."""
    if len(found) == len(series.workers):
        return list(found)
    names, known = ("compute_s", "serial_s", "comm_s", "wait_s"), series.workers[sample(len(series.workers))]
    lines = [np.interp(series.workers, known, [getattr(each, name) for each in found]) for name in names]
    return [StepSplit(*each) for each in np.transpose(lines).tolist()]


def _depends_on_size(series: AlikeCounts) -> bool:
    """Tell whether one rank's code makes other calls, or goes through more bytes, where there are more workers."""
    seen = [_run_alone(series.at(i), 1, 0.0) for i in (0, len(series.workers) - 1)]
    calls = [comm.calls for comm, _ in seen]
    rest = [float(np.max(log.ended_s - log.begun_s - log.met_s - sum(log.calls_s))) for _, log in seen]
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
    """Share out the time of one rank, which computes as long as the slowest, over all."""
    waits = np.maximum(0.0, slowest - series.usual_s * series.slowness())
    epoch_end_s = np.asarray(log.epoch_end_s) / series.steps_per_epoch
    comm_s, met_s = np.asarray(sum(log.calls_s)) / steps + epoch_end_s, np.asarray(log.met_s) / steps
    compute_s = np.asarray(log.compute_s) / steps
    step_s = np.asarray(log.ended_s - log.begun_s) / steps + epoch_end_s
    serial_s = step_s - comm_s - met_s - compute_s
    columns = np.broadcast_arrays(compute_s - waits, serial_s, comm_s, met_s + waits, slowest)[:4]
    return [StepSplit(*each) for each in np.transpose(columns).tolist()]


def _mean_of(compute: Slowest, steps: int, persistence: float) -> Slowest:
    """Return the distribution of the mean of so many steps in a row."""
    if steps <= 1:
        return compute
    random, blocks = np.random.default_rng(0), -(-min(steps, MOST_SUMMED) // STEPS)
    drawn = compute.draw_rows_s(random, SUMS * blocks, min(steps, STEPS), persistence)
    return Slowest.of(drawn.reshape(SUMS, -1).mean(axis=1))
