"""Correct predictions by the real runs that ended a calibration, and by those of earlier calibrations in its state.

The logarithm of measured over predicted time has a mean, which is what the model gets wrong in every run or what the
machine did in that minute, and a deviation, which is how runs differ. The mean is corrected for as far as it exceeds
its standard error (James and Stein 1961), by a half where there is one calibration, and by more where several agree;
the deviation, what is left of the mean, and how the means of several strategies differ, widen the interval.
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from manyhands.model.runs.state import same_state
from manyhands.record.calibration import Calibration, CallTimes, ClosingRun, RowTimes

LEVEL = 0.95
"""Quantile of Student's distribution that bounds a 90 % interval."""
BORROWED = 3
"""Degrees of freedom that the deviation of all runs of a task adds to that of the runs of one engine, which are few."""

Kind = Literal["alone", "collective", "servers"]
"""Runs that are corrected alike: of one worker, of strategies without servers, and with servers."""


class Correction(NamedTuple):
    """How real runs differ from predictions."""

    factor: float
    """By which predicted times are multiplied."""
    bound: float | None
    """Half of a run's 90 % interval, as a logarithm; None where there were too few runs to tell."""


NO_CORRECTION = Correction(1.0, None)


class _ConfigurationRuns(NamedTuple):
    """Log ratios of the runs of one configuration."""

    ranks: int
    logs: list[float]
    calibrations: int
    """Calibrations that they are from."""


def correction(calibration: Calibration, task: str, engine: str, *, workers: int, servers: int = 0) -> Correction:
    """Return the correction for runs of a task on the calibrated host; none where no real run was made.

    Of other numbers of ranks than were run, the mean is interpolated in the logarithm of the ranks.
    """
    kind = _kind(workers, servers)
    alike = _groups(calibration, task, engine, kind)
    # Without a run with servers, the collectives of the same engine are the nearest.
    alike = alike or (_groups(calibration, task, engine, "collective") if kind == "servers" else [])
    if not alike:
        return NO_CORRECTION
    of_engine = alike if kind == "alone" else _groups(calibration, task, engine, "collective", "servers")
    of_all = [
        group for name in {run.engine for run in calibration.closing} for group in _groups(calibration, task, name)
    ]
    freedom, squares = _squares(of_engine)
    freedom_of_all, squares_of_all = _squares(of_all)
    mean, agreeing = _mean(alike, workers + servers), min(group.calibrations for group in alike)
    systematic = mean * agreeing / (agreeing + 1)
    if not freedom_of_all:
        return NO_CORRECTION  # a single run of each cannot tell what is systematic
    borrowed = min(BORROWED, freedom_of_all)
    variance = (squares + borrowed * squares_of_all / freedom_of_all) / (freedom + borrowed)
    error = math.sqrt(variance / min(len(group.logs) for group in alike))
    kept = systematic * max(0.0, 1 - (error / mean) ** 2) if mean else 0.0
    between = float(np.std([np.mean(group.logs) for group in of_engine]))  # other strategies may differ as much
    deviation = math.hypot(math.sqrt(variance), error, mean - kept, between)
    return Correction(math.exp(kept), float(stdtrit(freedom + borrowed, LEVEL)) * deviation)


def corrected(calibration: Calibration, task: str, engine: str, compute: float, calls: float) -> Calibration:
    """Return a calibration whose steps of a task take `compute` times as long, and its engine's calls `calls` times."""
    if compute == calls == 1.0:
        return calibration
    costs, comm = calibration.tasks[task], calibration.comms[engine]
    crowd = [
        row.model_copy(
            update={
                "times": _slower(row.times, compute),
                "silent": _slower(row.silent, compute),
                "exchanges": _longer(row.exchanges, calls),
            }
        )
        if (row.engine, row.task) == (engine, task)
        else row
        for row in calibration.contention
    ]
    steps = {
        "points": [_slower(point, compute) for point in costs.points],
        "touch_ms": [compute * ms for ms in costs.touch_ms],
    }
    links = {
        "points": _longer(comm.points, calls),
        "latency_us": comm.latency_us * calls,
        "overhead_us": comm.overhead_us * calls,
        "gigabyte_per_s": comm.gigabyte_per_s / calls,
        "reduce_gigabyte_per_s": comm.reduce_gigabyte_per_s / calls,
    }
    return calibration.model_copy(
        update={
            "tasks": {**calibration.tasks, task: costs.model_copy(update=steps)},
            "comms": {**calibration.comms, engine: comm.model_copy(update=links)},
            "contention": crowd,
        }
    )


def _kind(workers: int, servers: int) -> Kind:
    if workers + servers == 1:
        return "alone"
    return "servers" if servers else "collective"


def _groups(calibration: Calibration, task: str, engine: str, *kinds: Kind) -> list[_ConfigurationRuns]:
    """Return the runs of these kinds, or of all, by increasing ranks; also of earlier calibrations in the same state.

    All are relative to the newest prediction, so that they show how the machine changes from one to the next.
    """
    engines = {"serial"} if kinds == ("alone",) else {engine}
    earlier = [other for other in calibration.earlier if same_state(other.cores, calibration.cores)]
    groups = []
    for run in calibration.closing:
        if run.task == task and run.engine in engines and (not kinds or _kind(run.workers, run.servers) in kinds):
            before = list(filter(None, (_same(other.closing, run) for other in earlier)))
            logs = run.log_ratios([*run.measured_ms, *chain(*before)])
            groups.append(_ConfigurationRuns(run.workers + run.servers, logs, 1 + len(before)))
    return sorted(groups)


def _squares(groups: Sequence[_ConfigurationRuns]) -> tuple[int, float]:
    """Return the degrees of freedom, and the sum of the squared deviations of runs from the mean of their group."""
    freedom = sum(len(group.logs) - 1 for group in groups)
    return freedom, sum(len(group.logs) * float(np.var(group.logs)) for group in groups)


def _same(closing: Sequence[ClosingRun], run: ClosingRun) -> list[float]:
    return [ms for other in closing if other.key == run.key for ms in other.measured_ms]


def _mean(groups: Sequence[_ConfigurationRuns], ranks: int) -> float:
    return float(np.interp(math.log(ranks), [math.log(g.ranks) for g in groups], [np.mean(g.logs) for g in groups]))


def _slower(point: RowTimes, factor: float) -> RowTimes:
    parts = {name: [factor * ms for ms in getattr(point, name)] for name in ("compute_ms", "serial_ms")}
    return point.model_copy(update=parts)


def _longer(points: Sequence[CallTimes], factor: float) -> list[CallTimes]:
    return [point.model_copy(update={"us": [factor * us for us in point.us]}) for point in points]
