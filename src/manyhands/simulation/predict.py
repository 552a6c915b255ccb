"""Step times of a strategy on so many workers, and what would have come of other calibrations and other seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from manyhands.errors import check
from manyhands.model.cluster import Cluster
from manyhands.model.crowd import StepTimes, step_times
from manyhands.model.machine import CalibratedMachine, machine_of
from manyhands.record.calibration import Calibration
from manyhands.record.simulation import Method
from manyhands.simulation.forms import SHORT, AlikeCounts, Closed, meetings
from manyhands.simulation.messages import form_of, message_forms
from manyhands.simulation.parts import TaskNetwork
from manyhands.simulation.request import Way, WorkerCount
from manyhands.simulation.solo import NoClosedForm
from manyhands.simulation.spread import SEEDS, Doubt, doubt, resampled
from manyhands.sync import Sync
from manyhands.virtual.events import Scene, StepSplit, simulate_steps

MOST_RANKS = 1024
"""Ranks up to which events are followed."""
MOST_WITH_CODEC = 128
"""The same where every rank decodes every other's code."""
RANK_STEPS = 10_000
"""Steps of all ranks together that are simulated by events, unless so many steps are asked for."""
STEPS = (50, 500)
"""The fewest and the most of them that a rank makes."""


class _Kind(NamedTuple):
    """What numbers of workers have in common that a closed form works on at once."""

    rows: int
    sharing: int
    """Workers of a node."""
    talks: bool
    """Whether there is anybody to exchange with."""
    short: int
    """Steps of an epoch that is followed as a whole; 0 of a longer one."""


@dataclass(frozen=True)
class Predicted:
    """A step of one strategy on so many workers."""

    point: WorkerCount
    sync: str
    servers: int
    method: Method
    split: StepSplit
    drawn_s: Sequence[float]
    """The step's time with each seed."""
    share: float
    """By how much one run's step may differ from what is expected: standard deviation, as a share."""


@final
@dataclass(frozen=True)
class Predictor:
    """Predicts steps of a task on a machine."""

    calibration: Calibration
    network: TaskNetwork
    engine: str
    cluster: Cluster | None
    seed: int = 0
    steps: int = 0
    """Steps to simulate by events, over all seeds; 0 to choose."""
    way: Way = "auto"

    @property
    def task(self) -> str:
        """The task's name in the calibration."""
        return self.network.config.task

    @cached_property
    def others(self) -> list[Calibration]:
        """What else might have been measured, one for each seed."""
        return [resampled(self.calibration, self.task, self.engine, self.seed + k) for k in range(SEEDS)]

    def most_ranks(self, strategy: Sync) -> float:
        """Return up to how many ranks of `strategy` are followed one by one."""
        if self.way == "auto":
            return MOST_RANKS if strategy.codec is None else MOST_WITH_CODEC
        return math.inf if self.way == "events" else 0

    def check(self, strategy: Sync, points: Sequence[WorkerCount]) -> None:
        """Refuse what cannot be predicted, before anything is."""
        ranks = max(point.workers for point in points) + strategy.num_servers()
        if self.cluster is not None:
            self.cluster.check_room(ranks)
        check(
            ranks <= self.most_ranks(strategy) or form_of(strategy) is not None or "p2p" not in strategy.requires,
            f"'{strategy.text}' has no closed form, since its ranks send messages to each other; "
            + ("use --method events" if self.way == "formula" else f"ask for {MOST_RANKS} ranks at most"),
        )

    def alone_s(self, batch_size: int) -> tuple[float, list[float]]:
        """Return the step of one worker by itself on a sound core, and what it is with each seed."""
        speed = self.cluster.core_speed if self.cluster else 1.0
        found = [
            float(step_times(each, self.task, self.engine, batch_size, 1).whole_s.mean()) / speed
            for each in (self.calibration, *self.others)
        ]
        return found[0], found[1:]

    def event_steps(self, workers: int) -> int:
        """Return how many steps are simulated by events."""
        return self.steps or int(np.clip(RANK_STEPS // workers, *STEPS))

    def events(self, strategy: Sync, point: WorkerCount, told: Callable[[], None]) -> Predicted:
        """Simulate with every seed; tell after each."""
        scene = self._scene(strategy, point)
        steps = -(-self.event_steps(point.workers) // SEEDS)
        splits = []
        for k, calibration in enumerate(self.others):
            machine = self._machine(calibration, strategy, point, point.shares(), self.seed + k)
            splits.append(simulate_steps(scene, machine, steps))
            told()
        names = ("compute_s", "serial_s", "comm_s", "wait_s")
        mean = StepSplit(*(float(np.mean([getattr(split, name) for split in splits])) for name in names))
        share = self._doubt(point, strategy).of(mean)
        drawn_s = [split.step_s for split in splits]
        return Predicted(point, strategy.text, strategy.num_servers(), "events", mean, drawn_s, share)

    def stage(self, strategy: Sync, point: WorkerCount) -> tuple[Scene, CalibratedMachine]:
        """Return what a run that is to have the predicted times takes place on."""
        return self._scene(strategy, point), self._machine(self.calibration, strategy, point, point.shares(), self.seed)

    def formula(self, strategy: Sync, points: Sequence[WorkerCount]) -> Iterator[Predicted]:
        """Predict many numbers of workers by closed form.

        As with events, the step is the mean of what comes of other calibrations: one alone has a tail of one shape,
        whose slowest of a thousand jumps from one number of rows to the next.
        """
        kinds: dict[_Kind, list[WorkerCount]] = {}
        for point in points:
            kinds.setdefault(self._kind(point, strategy), []).append(point)
        for kind in kinds.values():
            series = self._series(strategy, kind)
            found = self._closed(series)
            others = self._others(series, kind[0])
            waited = found.in_a_row, found.parted
            shifts = np.array([each.own_s(*waited) for each in others]) - series.own_s(*waited)
            usual = np.mean([each.own_s(0) for each in others], axis=0) - series.own_s(0)
            steps_s = np.array([split.step_s for split in found.splits])
            rows = zip(kind, found.splits, usual.tolist(), shifts.mean(axis=0).tolist(), strict=True)
            servers, unsure = strategy.num_servers(), self._doubt(kind[-1], strategy)
            for (point, first, computes_s, takes_s), drawn_s in zip(rows, (steps_s + shifts).T.tolist(), strict=True):
                split = _shifted(first, computes_s, takes_s)
                yield Predicted(point, strategy.text, servers, "closed form", split, drawn_s, unsure.of(split))

    def _kind(self, point: WorkerCount, strategy: Sync) -> _Kind:
        """Tell apart what a closed form cannot work on at once."""
        sharing = min(point.workers, self.cluster.node_size) if self.cluster else point.workers
        short = point.steps_per_epoch if point.steps_per_epoch <= SHORT else 0
        return _Kind(point.rows, sharing, point.workers + strategy.num_servers() > 1, short)

    def _times(self, calibration: Calibration, kind: _Kind, strategy: Sync) -> StepTimes:
        """Return the steps of a worker."""
        own = kind.rows, kind.sharing
        return step_times(calibration, self.task, self.engine, *own, period=strategy.period, talks=kind.talks)

    def _series(self, strategy: Sync, points: Sequence[WorkerCount]) -> AlikeCounts:
        kind = self._kind(points[0], strategy)
        return AlikeCounts(
            self._scene(strategy, points[0]),
            np.array([point.workers for point in points]),
            np.array([point.busy for point in points]),
            np.array([point.steps_per_epoch for point in points]),
            self._machine(self.calibration, strategy, points[0], kind.rows, self.seed),
            self._times(self.calibration, kind, strategy),
            self.cluster is None,
        )

    def _closed(self, series: AlikeCounts) -> Closed:
        strategy = series.scene.strategy
        form = form_of(strategy)
        try:
            return message_forms(series, form) if form else meetings(series)
        except NoClosedForm as error:
            raise NoClosedForm(f"there is no closed form for '{strategy.text}': {error}") from None

    def _others(self, series: AlikeCounts, point: WorkerCount) -> list[AlikeCounts]:
        """Return the same with what else might have been measured."""
        strategy = series.scene.strategy
        kind = self._kind(point, strategy)
        return [replace(series, times=self._times(each, kind, strategy)) for each in self.others]

    def _scene(self, strategy: Sync, point: WorkerCount) -> Scene:
        outline, times = self.network.outline(point.rows), self.network.times_of(strategy.codec)
        return Scene(strategy, point.workers, outline, point.steps_per_epoch, times)

    def _machine(
        self, calibration: Calibration, strategy: Sync, point: WorkerCount, rows: float | Sequence[float], seed: int
    ) -> CalibratedMachine:
        return machine_of(
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

    def _doubt(self, point: WorkerCount, strategy: Sync) -> Doubt:
        kind = self._kind(point, strategy)
        return doubt(
            self.calibration,
            self.task,
            self.engine,
            rows=kind.rows,
            sharing=kind.sharing,
            ranks=point.workers + strategy.num_servers(),
            on_host=self.cluster is None,
        )


def _shifted(split: StepSplit, computes_s: float, takes_s: float) -> StepSplit:
    """Return a step that takes longer, of which a worker computes a part and waits for the rest."""
    wait_s = split.wait_s + takes_s - computes_s
    # What is waited for less than nothing, where hardly anything is waited for, is computed less.
    computes_s += min(0.0, wait_s)
    return StepSplit(split.compute_s + computes_s, split.serial_s, split.comm_s, max(0.0, wait_s))
