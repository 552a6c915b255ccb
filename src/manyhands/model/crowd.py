"""How long steps take on a host, for any number of rows and of workers that share it, from those that were measured.

Between two measured points every quantile is interpolated, linearly in the rows: a step's time is nearly a constant
plus so much a row. Workers that share a host queue for what it has once, such as its memory or the interpreter's lock.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from manyhands.model.links import Floats
from manyhands.model.sharing import Growth, arithmetic_s, crowded, handing_on, lock_s, quantiles, queue_s, unevenness
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import Calibration, RowTimes

Part = Literal["times", "silent"]
PARTS: tuple[Part, Part] = ("times", "silent")
"""Steps that follow an exchange, and steps that do not."""
MOST_ALIKE = 0.95
"""Correlation of steps beyond which blocks of a minute tell nothing more."""


@final
@dataclass(frozen=True)
class StepTimes:
    """Samples of a worker's steps, in seconds, each in order."""

    compute_s: Floats
    """Forward and backward."""
    serial_s: Floats
    """The optimiser's step and the loop around it."""
    whole_s: Floats
    """Both of the same step."""

    def mixed(self, other: "StepTimes", share: float) -> "StepTimes":
        """Return what lies between the two: of each quantile, this share of the other's."""
        return StepTimes(*(_mix(a, b, share) for a, b in zip(_parts(self), _parts(other), strict=True)))

    def grown(self, factor: float) -> "StepTimes":
        """Return the same for a worker that takes so many times as long undisturbed; what disturbs it stays."""
        return StepTimes(*(part + (factor - 1) * undisturbed(part) for part in _parts(self)))

    def spread_out(self, busy_s: float, shares: Floats) -> "StepTimes":
        """Return the same for workers on uneven cores, each of which takes longer by such a share, the quickest first.

        Of the compute, only the arithmetic that keeps a core busy is so much slower where two virtual cores are one
        real one for a while; what waits for memory most of the time hardly is.
        """
        more_s = min(busy_s, undisturbed(self.compute_s)) * shares
        return StepTimes(np.sort(self.compute_s + more_s), self.serial_s, np.sort(self.whole_s + more_s))

    @property
    def quiet_s(self) -> float:
        """What a step takes that nothing disturbs."""
        return undisturbed(self.whole_s)


def step_times(
    calibration: Calibration, task: str, engine: str, rows: float, sharing: int, *, period: int = 1, talks: bool = False
) -> StepTimes:
    """Return the steps of a worker with so many rows while so many, itself included, share its host.

    Where each had a host of its own when it was calibrated, `sharing` is the workers of the run: more than were
    measured disturb it no more. One of `period` steps follows an exchange, for which a rank has slept and its caches
    have gone cold; `talks` tells that this is so, although nobody shares its host.
    """
    talking, silent = (_shared(calibration, task, engine, rows, sharing, part) for part in PARTS)
    if talks and sharing == 1:
        two = [_shared(calibration, task, engine, rows, 2, part).quiet_s for part in PARTS]
        talking = (
            silent.grown(max(1.0, two[0] / two[1])) if two[1] > 0 else silent
        )  # a worker without rows may take none
    return talking.mixed(silent, 1 - 1 / period)


def contention(calibration: Calibration, task: str, engine: str, rows: float, sharing: int) -> Growth:
    """Return how many times as long as alone a step takes; bounds apart only beyond the workers that were measured."""
    crowds = _crowds(calibration, task, engine)
    most = max(crowds)
    alone, shared = (step_times(calibration, task, engine, rows, k).quiet_s for k in (1, min(sharing, most)))
    if sharing <= most or calibration.comms[engine].apart:
        return Growth(*(shared / alone,) * 3)
    growth = _growth(calibration, task, engine, rows, sharing)
    return Growth(*(max(1.0, shared / alone) * each for each in growth))


def _shared(calibration: Calibration, task: str, engine: str, rows: float, sharing: int, part: Part) -> StepTimes:
    """Return the steps of one kind."""
    crowds = _crowds(calibration, task, engine, part)
    most = max(crowds)
    if sharing > most:
        few = _at_rows(crowds[most], rows)
        if calibration.comms[engine].apart:
            return few
        grown = few.grown(_growth(calibration, task, engine, rows, sharing).value)
        busy_s = arithmetic_s(calibration.cores, rows * calibration.tasks[task].flops_per_row, sharing)
        return grown.spread_out(busy_s, unevenness(calibration.cores, most, sharing, len(grown.whole_s)))
    fewer, more = max(k for k in crowds if k <= sharing), min(k for k in crowds if k >= sharing)
    share = 0.0 if more == fewer else (sharing - fewer) / (more - fewer)
    return _at_rows(crowds[fewer], rows).mixed(_at_rows(crowds[more], rows), share)


def run_spread(calibration: Calibration, task: str, engine: str, sharing: int) -> float:
    """Return by how much the mean step of one run differs from another's: standard deviation, as a share.

    Blocks of steps that were made at about the same time, whatever their rows, stand for a run.
    """
    crowds = _crowds(calibration, task, engine)
    points = crowds[max(k for k in crowds if k <= sharing)]
    blocks = [np.asarray(_block_means(point)) for point in points]
    rounds = min(len(each) for each in blocks)
    if rounds < 2:
        return 0.0
    return float(np.std(np.mean([each[:rounds] / each[:rounds].mean() for each in blocks], axis=0), ddof=1))


def persistence(calibration: Calibration, task: str, engine: str, sharing: int) -> float:
    """Return how much alike steps of a worker are that follow each other: the correlation within blocks of them."""
    crowds = _crowds(calibration, task, engine)
    ranks = max(k for k in crowds if k <= sharing)
    found = [_within(point, point.block // ranks) for point in crowds[ranks] if point.block >= 2 * ranks]
    return float(np.clip(np.median(found), 0.0, MOST_ALIKE)) if found else 0.0


def _within(point: RowTimes, steps: int) -> float:
    """Return the correlation within blocks of so many steps, each of one worker (analysis of variance)."""
    whole = np.asarray(point.compute_ms) + np.asarray(point.serial_ms)
    blocks = whole[: len(whole) // steps * steps].reshape(-1, steps)
    if len(blocks) < 2:
        return 0.0
    between, within = steps * blocks.mean(axis=1).var(ddof=1), blocks.var(axis=1, ddof=1).mean()
    total = between + (steps - 1) * within
    return float((between - within) / total) if total > 0 else 0.0


def _block_means(point: RowTimes) -> list[float]:
    whole = np.asarray(point.compute_ms) + np.asarray(point.serial_ms)
    return [float(whole[i : i + point.block].mean()) for i in range(0, len(whole) - point.block + 1, point.block)]


def _growth(calibration: Calibration, task: str, engine: str, rows: float, sharing: int) -> Growth:
    """Extrapolate to more workers: return how many times as long as the most that were measured they take.

    What they share is known from bare threads on as many cores as there are; see `sharing`.
    """
    crowds = _crowds(calibration, task, engine, "silent")
    most = max(crowds)
    if calibration.comms[engine].model == "slices":
        before_s, after_s = (_locked_s(calibration, task, engine, rows, most, workers) for workers in (most, sharing))
        return Growth(*(max(1.0, after / before_s.value) for after in after_s))
    measured = max(1.0, _at_rows(crowds[most], rows).quiet_s / _at_rows(crowds[1], rows).quiet_s)
    return crowded(calibration.cores, most, sharing, measured)


def _locked_s(calibration: Calibration, task: str, engine: str, rows: float, few: int, workers: int) -> Growth:
    """Return what a step takes so many threads by how often they need the lock; how a few share it was measured.

    Every piece of a batch needs it as often, and the update once more.
    """
    crowds, costs, cores = _crowds(calibration, task, engine, "silent"), calibration.tasks[task], calibration.cores
    pieces = math.ceil(rows / costs.piece_rows) if costs.piece_rows else 1
    often = pieces * costs.pass_operations + costs.update_operations
    free_s = max(0.0, _at_rows(crowds[1], rows).quiet_s - often * lock_s(cores, 1))
    slower, longer = crowded(cores, 1, workers), handing_on(cores.lock_us, few, workers)
    locked_s = often * lock_s(cores, 2)
    return Growth(*(queue_s(workers, locked_s * a, free_s * b) for a, b in zip(longer, slower, strict=True)))


def _crowds(calibration: Calibration, task: str, engine: str, part: Part = "times") -> dict[int, list[RowTimes]]:
    """Return the measured steps by the number of workers that shared the host; the fewest rows first."""
    found = {1: calibration.tasks[task].points}
    for each in sorted(calibration.crowd(engine, task), key=lambda each: each.rows):
        found.setdefault(each.ranks, []).append(each.times if part == "times" else each.silent)
    return found


def _at_rows(points: Sequence[RowTimes], rows: float) -> StepTimes:
    """Interpolate between the measured points; beyond them, scale the nearest as a straight line through two says."""
    if rows in [point.rows for point in points] or len(points) == 1:
        return _samples(min(points, key=lambda point: abs(point.rows - rows)))
    after = next((i for i, point in enumerate(points) if point.rows > rows), len(points))
    i = min(max(after, 1), len(points) - 1)
    low, high = points[i - 1], points[i]
    share = (rows - low.rows) / (high.rows - low.rows)
    if 0 <= share <= 1:
        return _samples(low).mixed(_samples(high), share)
    nearest = _samples(low if share < 0 else high)
    a, b = (_parts(_samples(point)) for point in (low, high))
    lines = [(1 - share) * undisturbed(x) + share * undisturbed(y) for x, y in zip(a, b, strict=True)]
    parts = zip(_parts(nearest), lines, strict=True)
    return StepTimes(*(part * max(0.0, line) / max(undisturbed(part), 1e-12) for part, line in parts))


def _samples(point: RowTimes) -> StepTimes:
    compute, serial = np.asarray(point.compute_ms) / 1e3, np.asarray(point.serial_ms) / 1e3
    return StepTimes(np.sort(compute), np.sort(serial), np.sort(compute + serial))


def _parts(times: StepTimes) -> tuple[Floats, Floats, Floats]:
    return times.compute_s, times.serial_s, times.whole_s


def _mix(a: Floats, b: Floats, share: float) -> Floats:
    if share in (0.0, 1.0):
        return b if share else a
    num = max(len(a), len(b))
    return (1 - share) * quantiles(a, num) + share * quantiles(b, num)
