"""Step times on a host for any number of rows and of workers that share it, interpolated from measured ones.

Between two measured points every quantile is interpolated linearly in the rows, since a step's time is nearly affine in
them. Workers that share a host queue for its single resources, such as memory or the interpreter's lock.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from manyhands.model.links import Floats
from manyhands.model.sharing import (
    SlowDown,
    arithmetic_s,
    crowded,
    lock_s,
    lock_slow_down,
    quantiles,
    queue_s,
    unevenness,
)
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import Calibration, RowTimes

Part = Literal["times", "silent"]
PARTS: tuple[Part, Part] = ("times", "silent")
"""Steps that follow an exchange, and steps that do not."""
MOST_CORRELATED = 0.95
"""Upper bound of the correlation between steps, since blocks of a minute cannot support a higher one."""


class StepTimes(NamedTuple):
    """Sorted samples of a worker's step times, in seconds."""

    compute_s: Floats
    """Forward and backward."""
    serial_s: Floats
    """The optimiser's step and the loop around it."""
    whole_s: Floats
    """The sum of both in the same step."""

    def mixed(self, other: "StepTimes", share: float) -> "StepTimes":
        """Interpolate every quantile: `share` of the other's, the rest of this one's."""
        return StepTimes(*(_mix(a, b, share) for a, b in zip(self, other, strict=True)))

    def slowed(self, factor: float) -> "StepTimes":
        """Return the times of a worker whose undisturbed step takes `factor` times as long, with the same noise."""
        return StepTimes(*(part + (factor - 1) * undisturbed(part) for part in self))

    def spread_out(self, busy_s: float, deviations: Floats) -> "StepTimes":
        """Return the times on uneven cores; `deviations` of core times from their mean are sorted and relative.

        Only the arithmetic that keeps a core busy, at most `busy_s`, slows down where two virtual cores share a
        physical one; compute that waits for memory hardly does.
        """
        more_s = min(busy_s, undisturbed(self.compute_s)) * deviations
        return StepTimes(np.sort(self.compute_s + more_s), self.serial_s, np.sort(self.whole_s + more_s))

    @property
    def quiet_s(self) -> float:
        """Time of an undisturbed step."""
        return undisturbed(self.whole_s)


def step_times(
    calibration: Calibration, task: str, engine: str, rows: float, sharing: int, *, period: int = 1, talks: bool = False
) -> StepTimes:
    """Return the step times of a worker with `rows` rows when `sharing` workers, itself included, share its host.

    Where the calibrated workers had a host each, `sharing` is the number of workers, and more than were measured
    cause no further slow-down. One step in `period` follows an exchange, during which the rank slept and its caches
    went cold; `talks` says that a worker alone on its host exchanges too.
    """
    talking, silent = (_shared(calibration, task, engine, rows, sharing, part) for part in PARTS)
    if talks and sharing == 1:
        two = [_shared(calibration, task, engine, rows, 2, part).quiet_s for part in PARTS]
        # A worker without rows may take no time at all.
        talking = silent.slowed(max(1.0, two[0] / two[1])) if two[1] > 0 else silent
    return talking.mixed(silent, 1 - 1 / period)


def contention(calibration: Calibration, task: str, engine: str, rows: float, sharing: int) -> SlowDown:
    """Return the slow-down of a step relative to one worker alone; exact up to the most workers measured."""
    crowds = _crowds(calibration, task, engine)
    most = max(crowds)
    alone, shared = (step_times(calibration, task, engine, rows, k).quiet_s for k in (1, min(sharing, most)))
    if sharing <= most or calibration.comms[engine].apart:
        return SlowDown(*(shared / alone,) * 3)
    beyond = _beyond(calibration, task, engine, rows, sharing)
    return SlowDown(*(max(1.0, shared / alone) * factor for factor in beyond))


def _shared(calibration: Calibration, task: str, engine: str, rows: float, sharing: int, part: Part) -> StepTimes:
    crowds = _crowds(calibration, task, engine, part)
    most = max(crowds)
    if sharing > most:
        few = _at_rows(crowds[most], rows)
        if calibration.comms[engine].apart:
            return few
        slowed = few.slowed(_beyond(calibration, task, engine, rows, sharing).value)
        busy_s = arithmetic_s(calibration.cores, rows * calibration.tasks[task].flops_per_row, sharing)
        return slowed.spread_out(busy_s, unevenness(calibration.cores, most, sharing, len(slowed.whole_s)))
    fewer, more = max(k for k in crowds if k <= sharing), min(k for k in crowds if k >= sharing)
    share = 0.0 if more == fewer else (sharing - fewer) / (more - fewer)
    return _at_rows(crowds[fewer], rows).mixed(_at_rows(crowds[more], rows), share)


def run_spread(calibration: Calibration, task: str, engine: str, sharing: int) -> float:
    """Return the relative standard deviation of the mean step between runs.

    A run is represented by the blocks of steps measured at about the same time, for all numbers of rows.
    """
    crowds = _crowds(calibration, task, engine)
    points = crowds[max(k for k in crowds if k <= sharing)]
    means = [_blocks(point, point.block).mean(axis=1) for point in points]
    rounds = min(map(len, means))
    if rounds < 2:
        return 0.0
    return float(np.std(np.mean([mean[:rounds] / mean[:rounds].mean() for mean in means], axis=0), ddof=1))


def persistence(calibration: Calibration, task: str, engine: str, sharing: int) -> float:
    """Return the correlation between successive steps of a worker: the intraclass correlation of measured blocks."""
    crowds = _crowds(calibration, task, engine)
    ranks = max(k for k in crowds if k <= sharing)
    correlations = [_intraclass(point, point.block // ranks) for point in crowds[ranks] if point.block >= 2 * ranks]
    return float(np.clip(np.median(correlations), 0.0, MOST_CORRELATED)) if correlations else 0.0


def _intraclass(point: RowTimes, steps: int) -> float:
    """Return the intraclass correlation of blocks of `steps` steps, each of one worker (analysis of variance)."""
    blocks = _blocks(point, steps)
    if len(blocks) < 2:
        return 0.0
    between, within = steps * blocks.mean(axis=1).var(ddof=1), blocks.var(axis=1, ddof=1).mean()
    total = between + (steps - 1) * within
    return float((between - within) / total) if total > 0 else 0.0


def _blocks(point: RowTimes, steps: int) -> Floats:
    """Return the whole steps as rows of `steps`; an incomplete last row is left out."""
    whole: Floats = np.asarray(point.compute_ms) + np.asarray(point.serial_ms)
    return whole[: len(whole) // steps * steps].reshape(-1, steps)


def _beyond(calibration: Calibration, task: str, engine: str, rows: float, sharing: int) -> SlowDown:
    """Extrapolate the slow-down of `sharing` workers relative to the most that were measured, from bare threads."""
    crowds = _crowds(calibration, task, engine, "silent")
    most = max(crowds)
    if calibration.comms[engine].model == "slices":
        before_s, after_s = (_locked_s(calibration, task, engine, rows, most, workers) for workers in (most, sharing))
        return SlowDown(*(max(1.0, after / before_s.value) for after in after_s))
    measured = max(1.0, _at_rows(crowds[most], rows).quiet_s / _at_rows(crowds[1], rows).quiet_s)
    return crowded(calibration.cores, most, sharing, measured)


def _locked_s(calibration: Calibration, task: str, engine: str, rows: float, few: int, workers: int) -> SlowDown:
    """Return the step time of `workers` threads that queue for the lock; its slow-down is certain up to `few`.

    Every piece of a batch acquires the lock once per operation, and so does the update.
    """
    crowds, costs, cores = _crowds(calibration, task, engine, "silent"), calibration.tasks[task], calibration.cores
    pieces = math.ceil(rows / costs.piece_rows) if costs.piece_rows else 1
    operations = pieces * costs.pass_operations + costs.update_operations
    free_s = max(0.0, _at_rows(crowds[1], rows).quiet_s - operations * lock_s(cores, 1))
    slower, longer = crowded(cores, 1, workers), lock_slow_down(cores.lock_us, few, workers)
    locked_s = operations * lock_s(cores, 2)
    return SlowDown(*(queue_s(workers, locked_s * a, free_s * b) for a, b in zip(longer, slower, strict=True)))


def _crowds(calibration: Calibration, task: str, engine: str, part: Part = "times") -> dict[int, list[RowTimes]]:
    """Return the measured steps by the number of workers that shared the host, sorted by rows."""
    crowds = {1: calibration.tasks[task].points}
    for point in sorted(calibration.crowd(engine, task), key=lambda point: point.rows):
        crowds.setdefault(point.ranks, []).append(point.times if part == "times" else point.silent)
    return crowds


def _at_rows(points: Sequence[RowTimes], rows: float) -> StepTimes:
    """Interpolate between the measured points; beyond them, scale the nearest along the line through the last two."""
    if rows in [point.rows for point in points] or len(points) == 1:
        return _samples(min(points, key=lambda point: abs(point.rows - rows)))
    after = next((i for i, point in enumerate(points) if point.rows > rows), len(points))
    i = min(max(after, 1), len(points) - 1)
    share = (rows - points[i - 1].rows) / (points[i].rows - points[i - 1].rows)
    low, high = _samples(points[i - 1]), _samples(points[i])
    if 0 <= share <= 1:
        return low.mixed(high, share)
    lines = [(1 - share) * undisturbed(a) + share * undisturbed(b) for a, b in zip(low, high, strict=True)]
    parts = zip(low if share < 0 else high, lines, strict=True)
    return StepTimes(*(part * max(0.0, line) / max(undisturbed(part), 1e-12) for part, line in parts))


def _samples(point: RowTimes) -> StepTimes:
    compute, serial = np.asarray(point.compute_ms) / 1e3, np.asarray(point.serial_ms) / 1e3
    return StepTimes(np.sort(compute), np.sort(serial), np.sort(compute + serial))


def _mix(a: Floats, b: Floats, share: float) -> Floats:
    if share in (0.0, 1.0):
        return b if share else a
    num = max(len(a), len(b))
    return (1 - share) * quantiles(a, num) + share * quantiles(b, num)
