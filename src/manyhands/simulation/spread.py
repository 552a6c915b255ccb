"""Uncertainty of predictions: bootstrap calibrations, differences between runs, and extrapolation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manyhands.model.between import gpu_spread
from manyhands.model.crowd import contention, run_spread
from manyhands.model.links import Floats
from manyhands.model.runs.correction import Correction
from manyhands.model.sharing import SlowDown, lock_slow_down
from manyhands.record.calibration import Calibration, CallTimes, RowTimes
from manyhands.record.simulation import Estimate
from manyhands.virtual.events import StepSplit

SEEDS = 10
"""Bootstrap calibrations, with one simulation by events for each."""
STUDENT = 1.833
"""Half-width of a 90 % interval in standard deviations that are estimated from `SEEDS` samples."""
NORMAL = 1.645
"""The same with a known standard deviation."""
MEDIAN_ERROR = 0.6745
"""Median absolute deviation of a normal distribution, in standard deviations."""


def resampled(calibration: Calibration, task: str, engine: str, seed: int) -> Calibration:
    """Return a bootstrap sample of the measurements of `task` and `engine`; steps are drawn in measured blocks."""
    random = np.random.default_rng((seed, 1))
    costs, comm = calibration.tasks[task], calibration.comms[engine]
    points = [_steps(point, random) for point in costs.points]
    crowd = [
        entry.model_copy(
            update={
                "times": _steps(entry.times, random),
                "silent": _steps(entry.silent, random),
                "exchanges": _calls(entry.exchanges, random),
            }
        )
        if (entry.engine, entry.task) == (engine, task)
        else entry
        for entry in calibration.contention
    ]
    return calibration.model_copy(
        update={
            "tasks": {**calibration.tasks, task: costs.model_copy(update={"points": points})},
            "comms": {**calibration.comms, engine: comm.model_copy(update={"points": _calls(comm.points, random)})},
            "contention": crowd,
        }
    )


@dataclass(frozen=True)
class Uncertainty:
    """Relative standard deviations of a run's step from the prediction."""

    runs: float
    """Of the whole step: differences between runs."""
    contention: float
    """Of compute and serial work: the slow-down beyond the most workers per node that were measured."""
    calls: float
    """Of the exchange: the error of the fitted formulas beyond the measured ranks or links, and of the lock's slow-down
    among more threads."""

    def of(self, split: StepSplit) -> float:
        """Return the relative standard deviation of a whole step."""
        work, comm = split.compute_s + split.serial_s, split.comm_s
        return math.hypot(self.runs, self.contention * work / split.step_s, self.calls * comm / split.step_s)


def uncertainty(
    calibration: Calibration,
    task: str,
    engine: str,
    correction: Correction,
    *,
    rows: float,
    sharing: int,
    ranks: int,
    on_host: bool,
) -> Uncertainty:
    """Return the uncertainty for `ranks` ranks with `rows` rows per worker and `sharing` workers per node."""
    comm = calibration.comms[engine]
    fit = 0.0 if on_host and ranks <= comm.ranks else comm.error_pct / 100 / MEDIAN_ERROR
    locked = comm.model == "slices" and on_host
    lock = _deviation(lock_slow_down(calibration.cores.lock_us, comm.ranks, ranks)) if locked else 0.0
    return Uncertainty(
        math.hypot(between_runs(calibration, task, engine, correction, sharing), gpu_spread(calibration, task, rows)),
        _deviation(contention(calibration, task, engine, rows, sharing)),
        math.hypot(fit, lock),
    )


def between_runs(calibration: Calibration, task: str, engine: str, correction: Correction, sharing: int) -> float:
    """Return the relative standard deviation between runs: of real ones, else of the calibration's blocks of steps."""
    if correction.bound is None:
        return run_spread(calibration, task, engine, sharing)
    return correction.bound / STUDENT  # which `estimates` multiplies with again


def _deviation(bounds: SlowDown) -> float:
    """Return the relative standard deviation of a quantity whose 90 % interval is `bounds`."""
    return math.log(bounds.high / bounds.low) / (2 * NORMAL)


def estimate(value: float, drawn: Sequence[float], share: float) -> Estimate:
    """Return one value with its 90 % interval; see `estimates`."""
    return estimates(np.array([value]), np.array([drawn]), np.array([share]))[0]


def estimates(values: Floats, drawn: Floats, shares: Floats) -> list[Estimate]:
    """Return values with their 90 % intervals, which are symmetric in the logarithm.

    Row i of `drawn` has value i with each seed; `shares` are further relative standard deviations.
    """
    deviations = np.hypot(drawn.std(axis=1, ddof=1) / values, shares)
    factors = np.exp(STUDENT * deviations)
    columns = (values.tolist(), (values / factors).tolist(), (values * factors).tolist())
    return [Estimate(*bounds) for bounds in zip(*columns, strict=True)]


def _steps(point: RowTimes, random: np.random.Generator) -> RowTimes:
    starts = np.arange(0, max(1, len(point.compute_ms) - point.block + 1), point.block)
    chosen = random.choice(starts, len(starts))
    places = [i for start in chosen for i in range(start, min(start + point.block, len(point.compute_ms)))]
    parts = {name: [getattr(point, name)[i] for i in places] for name in ("compute_ms", "serial_ms")}
    return point.model_copy(update=parts)


def _calls(points: Sequence[CallTimes], random: np.random.Generator) -> list[CallTimes]:
    return [point.model_copy(update={"us": random.choice(point.us, len(point.us)).tolist()}) for point in points]
