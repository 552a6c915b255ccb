"""Step times of a strategy on n workers, and how they vary over bootstrap calibrations and seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from manyhands.errors import check
from manyhands.model.cluster import Cluster
from manyhands.model.crowd import StepTimes, step_times
from manyhands.model.machine import CalibratedMachine
from manyhands.model.runs.correction import NO_CORRECTION, Correction, corrected, correction
from manyhands.record.calibration import Calibration
from manyhands.record.simulation import Method
from manyhands.simulation.forms import SHORT, AlikeCounts, Closed, meetings
from manyhands.simulation.messages import form_of, message_forms
from manyhands.simulation.parts import TaskNetwork
from manyhands.simulation.request import Way, WorkerCount
from manyhands.simulation.solo import NoClosedForm
from manyhands.simulation.spread import SEEDS, Uncertainty, resampled, uncertainty
from manyhands.sync import Sync
from manyhands.virtual.events import Scene, StepSplit, simulate_steps

MOST_RANKS = 1024
"""Ranks up to which events are simulated."""
MOST_WITH_CODEC = 128
"""The same where every rank decodes the code of every other."""
RANK_STEPS = 10_000
"""Steps, summed over ranks, that are simulated by events unless the request gives a number."""
STEPS = (50, 500)
"""Fewest and most of these steps per rank."""


class _Kind(NamedTuple):
    """The properties that numbers of workers must share to be evaluated by one closed form."""

    rows: int
    sharing: int
    """Workers per node."""
    talks: bool
    """Whether there is more than one rank."""
    short: int
    """Steps of an epoch that is simulated as a whole; 0 for a longer one."""


@dataclass(frozen=True)
class CorrectedCalibration:
    """A calibration with what its real runs tell, and bootstrap samples of it, one for each seed."""

    calibration: Calibration
    others: list[Calibration]
    correction: Correction


@dataclass(frozen=True)
class Predicted:
    """The predicted step of one strategy on one number of workers."""

    point: WorkerCount
    sync: str
    servers: int
    method: Method
    split: StepSplit
    drawn_s: Sequence[float]
    """The step time with each seed."""
    share: float
    """Relative standard deviation between runs that the seeds do not cover."""


@final
@dataclass(frozen=True)
class Predictor:
    """Predicts the steps of a task on a cluster, or on this host without one."""

    calibration: Calibration
    network: TaskNetwork
    engine: str
    cluster: Cluster | None
    seed: int = 0
    steps: int = 0
    """Steps to simulate by events, summed over seeds; 0 to choose."""
    way: Way = "auto"
    _corrected: dict[tuple[float, float], "CorrectedCalibration"] = field(default_factory=dict, repr=False)
    """By the factors of compute and of calls."""

    @property
    def task(self) -> str:
        """The task's name in the calibration."""
        return self.network.config.task

    @cached_property
    def _others(self) -> list[Calibration]:
        return [resampled(self.calibration, self.task, self.engine, self.seed + k) for k in range(SEEDS)]

    def corrected(self, workers: int, servers: int = 0) -> CorrectedCalibration:
        """Return the calibration for this many ranks: on this host, all times are corrected by its real runs.

        Of a cluster, whose links are not this host's, and where there were no such runs, only compute is, by those of
        one worker alone.
        """
        about = self.calibration, self.task, self.engine
        real = correction(*about, workers=workers, servers=servers) if self.cluster is None else NO_CORRECTION
        factors = real.factor, real.factor
        if real == NO_CORRECTION:
            real = correction(*about, workers=1)
            factors = real.factor, 1.0
        if factors not in self._corrected:
            changed = [
                corrected(other, self.task, self.engine, *factors) for other in (self.calibration, *self._others)
            ]
            self._corrected[factors] = CorrectedCalibration(changed[0], changed[1:], real)
        return replace(self._corrected[factors], correction=real)

    def most_ranks(self, strategy: Sync) -> float:
        """Return the number of ranks of `strategy` up to which events are simulated."""
        if self.way == "auto":
            return MOST_RANKS if strategy.codec is None else MOST_WITH_CODEC
        return math.inf if self.way == "events" else 0

    def check(self, strategy: Sync, points: Sequence[WorkerCount]) -> None:
        """Raise a `UserError` if a point cannot be predicted."""
        ranks = max(point.workers for point in points) + strategy.num_servers()
        if self.cluster is not None:
            self.cluster.check_room(ranks)
        check(
            ranks <= self.most_ranks(strategy) or form_of(strategy) is not None or "p2p" not in strategy.requires,
            f"'{strategy.text}' has no closed form, since its ranks send messages to each other; "
            + ("use --method events" if self.way == "formula" else f"ask for {MOST_RANKS} ranks at most"),
        )

    def events(self, strategy: Sync, point: WorkerCount, on_seed: Callable[[], None]) -> Predicted:
        """Simulate by events with every seed; call `on_seed` after each."""
        scene = self._scene(strategy, point)
        total = self.steps or int(np.clip(RANK_STEPS // point.workers, *STEPS))
        splits = []
        for k, calibration in enumerate(self._of(strategy, point).others):
            machine = self._machine(calibration, strategy, point, point.shares(), self.seed + k)
            splits.append(simulate_steps(scene, machine, -(-total // SEEDS)))
            on_seed()
        mean = StepSplit(*(float(np.mean(part)) for part in zip(*map(astuple, splits), strict=True)))
        share = self._uncertainty(point, strategy).of(mean)
        drawn_s = [split.step_s for split in splits]
        return Predicted(point, strategy.text, strategy.num_servers(), "events", mean, drawn_s, share)

    def stage(self, strategy: Sync, point: WorkerCount) -> tuple[Scene, CalibratedMachine]:
        """Return scene and machine of a virtual run that takes the predicted time."""
        calibration = self._of(strategy, point).calibration
        return self._scene(strategy, point), self._machine(calibration, strategy, point, point.shares(), self.seed)

    def formula(self, strategy: Sync, points: Sequence[WorkerCount]) -> Iterator[Predicted]:
        """Predict any number of points by closed form.

        As with events, the step is the mean over bootstrap calibrations: a single one has one tail shape, so that its
        expected maximum over many ranks jumps from one number of rows to the next.
        """
        groups: dict[_Kind, list[WorkerCount]] = {}
        for point in points:
            groups.setdefault(self._kind(point, strategy), []).append(point)
        for kind, group in groups.items():
            series = self._series(strategy, kind, group)
            closed = self._closed(series)
            drawn = self._of(strategy, group[0]).others
            others = [replace(series, times=self._times(other, kind, strategy)) for other in drawn]
            waits = closed.in_a_row, closed.parted
            shifts = np.array([other.without_exchange_s(*waits) for other in others]) - series.without_exchange_s(
                *waits
            )
            usual = np.mean([other.without_exchange_s(0) for other in others], axis=0) - series.without_exchange_s(0)
            steps_s = np.array([split.step_s for split in closed.splits])
            columns = (usual.tolist(), shifts.mean(axis=0).tolist(), (steps_s + shifts).T.tolist())
            servers, unsure = strategy.num_servers(), self._uncertainty(group[-1], strategy)
            for point, first, compute_s, step_s, drawn_s in zip(group, closed.splits, *columns, strict=True):
                split = _shifted(first, compute_s, step_s)
                yield Predicted(point, strategy.text, servers, "closed form", split, drawn_s, unsure.of(split))

    def _of(self, strategy: Sync, point: WorkerCount) -> CorrectedCalibration:
        return self.corrected(point.workers, strategy.num_servers())

    def _kind(self, point: WorkerCount, strategy: Sync) -> _Kind:
        sharing = min(point.workers, self.cluster.node_size) if self.cluster else point.workers
        short = point.steps_per_epoch if point.steps_per_epoch <= SHORT else 0
        return _Kind(point.rows, sharing, point.workers + strategy.num_servers() > 1, short)

    def _times(self, calibration: Calibration, kind: _Kind, strategy: Sync) -> StepTimes:
        rows, sharing, talks, _ = kind
        return step_times(calibration, self.task, self.engine, rows, sharing, period=strategy.period, talks=talks)

    def _series(self, strategy: Sync, kind: _Kind, points: Sequence[WorkerCount]) -> AlikeCounts:
        calibration = self._of(strategy, points[0]).calibration
        return AlikeCounts(
            self._scene(strategy, points[0]),
            np.array([point.workers for point in points]),
            np.array([point.busy for point in points]),
            np.array([point.steps_per_epoch for point in points]),
            self._machine(calibration, strategy, points[0], kind.rows, self.seed),
            self._times(calibration, kind, strategy),
        )

    def _closed(self, series: AlikeCounts) -> Closed:
        strategy = series.scene.strategy
        form = form_of(strategy)
        try:
            return message_forms(series, form) if form else meetings(series)
        except NoClosedForm as error:
            raise NoClosedForm(f"there is no closed form for '{strategy.text}': {error}") from None

    def _scene(self, strategy: Sync, point: WorkerCount) -> Scene:
        outline, times = self.network.outline(point.rows), self.network.times_of(strategy.codec)
        return Scene(strategy, point.workers, outline, point.steps_per_epoch, times)

    def _machine(
        self, calibration: Calibration, strategy: Sync, point: WorkerCount, rows: float | Sequence[float], seed: int
    ) -> CalibratedMachine:
        return CalibratedMachine(
            calibration,
            self.task,
            engine=self.engine,
            cluster=self.cluster,
            workers=point.workers,
            rows_per_worker=rows,
            servers=strategy.num_servers(),
            pushes=point.workers if strategy.lockstep else 1,
            period=strategy.period,
            seed=seed,
        )

    def _uncertainty(self, point: WorkerCount, strategy: Sync) -> Uncertainty:
        rows, sharing, _, _ = self._kind(point, strategy)
        ranks, on_host = point.workers + strategy.num_servers(), self.cluster is None
        about = self.calibration, self.task, self.engine, self._of(strategy, point).correction
        return uncertainty(*about, rows=rows, sharing=sharing, ranks=ranks, on_host=on_host)


def _shifted(split: StepSplit, compute_s: float, step_s: float) -> StepSplit:
    """Return a split whose step is longer by `step_s`, of which `compute_s` is compute and the rest waiting."""
    wait_s = split.wait_s + step_s - compute_s
    # Where waiting would become negative, compute is reduced instead.
    compute_s += min(0.0, wait_s)
    return StepSplit(split.compute_s + compute_s, split.serial_s, split.comm_s, max(0.0, wait_s))
