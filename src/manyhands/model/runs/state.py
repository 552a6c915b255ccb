"""The state of a machine: how fast its cores compute, alone and all at once, when a calibration was made and now."""

import math
from collections.abc import Iterable

import numpy as np

from manyhands.record.calibration import Calibration, CoreTimes

SAME = 1.3
"""Greatest ratio of two times in the same state; a probe of an idle virtual machine varies by up to 1.2."""


def slow_down(then: CoreTimes, now: CoreTimes) -> float:
    """Return how many times as long a matrix product takes now: with one busy core or with all, what differs more."""
    ratios = [_mean_us(now, threads) / _mean_us(then, threads) for threads in _both(then, now)]
    return max(ratios, key=lambda ratio: abs(math.log(ratio)))


def same_state(then: CoreTimes, now: CoreTimes) -> bool:
    """Tell whether the cores are about as fast as then."""
    return 1 / SAME <= slow_down(then, now) <= SAME


def in_state(calibration: Calibration, now: CoreTimes, task: str, engines: Iterable[str]) -> Calibration | None:
    """Return the newest calibration of a task and its engines that was made in the present state; None without any.

    An earlier one comes with the later ones as its `earlier`: their runs tell how much the machine changes.
    """
    made, needed = [calibration, *calibration.earlier], set(engines)
    for i, chosen in enumerate(made):
        if task in chosen.tasks and needed <= set(chosen.engines(task)) and same_state(chosen.cores, now):
            rest = [other.model_copy(update={"earlier": []}) for other in (*made[:i], *made[i + 1 :])]
            return chosen.model_copy(update={"earlier": rest})
    return None


def _both(then: CoreTimes, now: CoreTimes) -> list[int]:
    """Return the fewest and the most threads of which both have times."""
    common = sorted(then.compute_us.keys() & now.compute_us.keys())
    return sorted({common[0], common[-1]})


def _mean_us(cores: CoreTimes, threads: int) -> float:
    return float(np.mean(cores.compute_us[threads]))
