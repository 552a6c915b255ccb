"""How sure a prediction is: what else might have been measured, and how runs differ from each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manyhands.model.crowd import contention, run_spread
from manyhands.model.links import Floats
from manyhands.model.sharing import Growth, handing_on
from manyhands.record.calibration import Calibration, CallTimes, RowTimes
from manyhands.record.simulation import Estimate
from manyhands.virtual.events import StepSplit

SEEDS = 10
"""Calibrations that might have been measured, and runs of events: one of each for every seed."""
STUDENT = 1.833
"""Standard deviations to either side that a 90 % interval takes when these are estimated from so many seeds."""
NORMAL = 1.645
"""The same where they are known."""
MEDIAN_ERROR = 0.6745
"""Standard deviations that half of all errors stay below."""


def resampled(calibration: Calibration, task: str, engine: str, seed: int) -> Calibration:
    """Draw anew from what was measured of this task and engine (bootstrap), steps in blocks as they were made."""
    random = np.random.default_rng((seed, 1))
    costs, comm = calibration.tasks[task], calibration.comms[engine]
    points = [_steps(point, random) for point in costs.points]
    crowd = [
        each.model_copy(
            update={
                "times": _steps(each.times, random),
                "silent": _steps(each.silent, random),
                "exchanges": _calls(each.exchanges, random),
            }
        )
        if (each.engine, each.task) == (engine, task)
        else each
        for each in calibration.contention
    ]
    return calibration.model_copy(
        update={
            "tasks": {**calibration.tasks, task: costs.model_copy(update={"points": points})},
            "comms": {**calibration.comms, engine: comm.model_copy(update={"points": _calls(comm.points, random)})},
            "contention": crowd,
        }
    )


@dataclass(frozen=True)
class Doubt:
    """By how much a run's step may differ from what is expected: standard deviations, as shares."""

    runs: float
    """Of a step: one run's differs from another's."""
    crowd: float
    """Of what workers do by themselves: nobody knows how much they disturb each other where more than were measured
    share a node."""
    calls: float
    """Of the exchange: calls of more ranks, or over other links, than were measured are as sure as the formulas fit,
    and as it is known how long more threads take to get a lock."""

    def of(self, split: StepSplit) -> float:
        """Return the share of a whole step."""
        own, comm = split.compute_s + split.serial_s, split.comm_s
        return math.hypot(self.runs, self.crowd * own / split.step_s, self.calls * comm / split.step_s)


def doubt(
    calibration: Calibration, task: str, engine: str, *, rows: float, sharing: int, ranks: int, on_host: bool
) -> Doubt:
    """Return what is not known of workers with so many rows, so many of them on a node, and so many ranks in all."""
    comm = calibration.comms[engine]
    fits = 0.0 if on_host and ranks <= comm.ranks else comm.error_pct / 100 / MEDIAN_ERROR
    locked = comm.model == "slices" and on_host
    lock = _within(handing_on(calibration.cores.lock_us, comm.ranks, ranks)) if locked else 0.0
    return Doubt(
        run_spread(calibration, task, engine, sharing),
        _within(contention(calibration, task, engine, rows, sharing)),
        math.hypot(fits, lock),
    )


def _within(bounds: Growth) -> float:
    """Return the standard deviation of what lies between these bounds nine times of ten, as a share."""
    return math.log(bounds.high / bounds.low) / (2 * NORMAL)


def estimate(value: float, drawn: Sequence[float], share: float) -> Estimate:
    """Put bounds around one value."""
    return estimates(np.array([value]), np.array([drawn]), np.array([share]))[0]


def estimates(values: Floats, drawn: Floats, shares: Floats) -> list[Estimate]:
    """Put bounds around values: as far as what came of other seeds differs, and beyond that by a share of it.

    What is many times too much is as likely as what is as many times too little. A row of `drawn` belongs to a value.
    """
    off = np.hypot(drawn.std(axis=1, ddof=1) / values, shares)
    factors = np.exp(STUDENT * off)
    columns = (values.tolist(), (values / factors).tolist(), (values * factors).tolist())
    return [Estimate(*each) for each in zip(*columns, strict=True)]


def _steps(point: RowTimes, random: np.random.Generator) -> RowTimes:
    starts = np.arange(0, max(1, len(point.compute_ms) - point.block + 1), point.block)
    chosen = random.choice(starts, len(starts))
    places = [i for start in chosen for i in range(start, min(start + point.block, len(point.compute_ms)))]
    parts = {name: [getattr(point, name)[i] for i in places] for name in ("compute_ms", "serial_ms")}
    return point.model_copy(update=parts)


def _calls(points: Sequence[CallTimes], random: np.random.Generator) -> list[CallTimes]:
    return [point.model_copy(update={"us": random.choice(point.us, len(point.us)).tolist()}) for point in points]
