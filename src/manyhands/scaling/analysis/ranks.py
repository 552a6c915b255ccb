"""Look at a run's step as its typical rank sees it: its own work, the exchange, and what it waits for.

Means over ranks and steps would count a slow rank, and long steps of any rank, half as computing and half as waiting.
The usual step of the typical rank knows neither, so that the time beyond it has a cause among the ranks:

- a rank that has more rows takes longer in proportion (`uneven`);
- a rank that takes longer for its rows, and is the last to arrive in most steps, is slow (`slow-rank`);
- where other programs took the cores, the time in which a rank had none (`others`);
- the remainder are long steps, now of this rank, now of that one (`straggler`).

With two ranks either may be the typical one: it is the one nearer to a worker alone with as many rows.
"""

import math
from dataclasses import dataclass, replace

from manyhands.measurement.measure import usual_ms
from manyhands.record.run import RankSteps
from manyhands.record.sweep import Cause, Measure

MOSTLY = 2 / 3
"""Share of the steps in which a slow rank is the last to arrive."""
SLOWER = 1.1
"""How many times as long as usual a rank takes that is called slow."""


@dataclass(frozen=True)
class StepView:
    """A step as its typical rank sees it; the milliseconds sum up to the run's `step_ms`."""

    compute_ms: float
    """Of the mean number of rows, without `data_ms`."""
    data_ms: float
    serial_ms: float
    comm_ms: float
    waits_ms: dict[Cause, float]
    slow: RankSteps | None = None
    """The slow rank, if one is slow."""
    typical: RankSteps | None = None

    @property
    def waiting_ms(self) -> float:
        """All time beyond the usual step of the typical rank."""
        return sum(self.waits_ms.values())


def view(run: Measure, size: int, sample_ms: float | None = None, *, crowded: bool = False) -> StepView:
    """Return the step of a run of `size` workers; a worker alone computes for `sample_ms` a row, if that is known.

    If ranks are `crowded`, more of them than cores, they take cores from each other, and `others` is not told apart.
    """
    if run.typical is None or run.slowest is None:
        compute_ms = run.step_ms - run.serial_ms - run.comm_ms - run.wait_ms  # parts sum up in spite of rounding
        return StepView(compute_ms, 0.0, run.serial_ms, run.comm_ms, {"wait": run.wait_ms})
    typical, rows = _typical(run.typical, run.slowest, size, sample_ms), run.batch_size / size
    data_ms = min(typical.gather_ms, typical.median_ms)  # a mean, which a few slow reads may raise above the median
    compute_ms = (typical.median_ms - data_ms) * rows / max(1, typical.rows)
    seen = StepView(compute_ms, data_ms, typical.serial_ms, run.comm_ms, {}, typical=typical)
    beyond_ms = run.step_ms - compute_ms - seen.data_ms - seen.serial_ms - seen.comm_ms
    taken_ms = 0.0 if crowded else _taken_ms(run, size, beyond_ms)
    left_ms = max(0.0, beyond_ms - taken_ms)
    uneven_ms = min(left_ms, compute_ms * max(0.0, run.slowest.rows / rows - 1))
    late_ms = usual_ms(run.slowest) - seen.data_ms - seen.serial_ms - compute_ms * run.slowest.rows / rows
    is_slow = run.slowest.last >= MOSTLY and late_ms >= (SLOWER - 1) * (usual_ms(run.slowest) - late_ms)
    slow_ms = min(left_ms - uneven_ms, late_ms) if is_slow else 0.0
    waits_ms: dict[Cause, float] = {
        "slow-rank": slow_ms,
        "uneven": uneven_ms,
        "others": taken_ms,
        "straggler": beyond_ms - taken_ms - uneven_ms - slow_ms,
    }
    return replace(seen, waits_ms=waits_ms, slow=run.slowest if slow_ms > 0 else None)


def _typical(typical: RankSteps, slowest: RankSteps, size: int, sample_ms: float | None) -> RankSteps:
    """Return the typical rank; of two, the slower one if it is nearer to a worker alone."""
    if size != 2 or sample_ms is None or not typical.rows or not slowest.rows:
        return typical
    faster_ms, slower_ms = ((rank.median_ms - rank.gather_ms) / rank.rows for rank in (typical, slowest))
    return slowest if abs(slower_ms - sample_ms) < sample_ms - faster_ms else typical


def _taken_ms(run: Measure, size: int, beyond_ms: float) -> float:
    """Return how much longer a step took since other programs had the cores.

    A rank lacked a core for some time on average. If all ranks lack it at once, a step takes that much longer; if one
    after the other, while the rest wait, that of all together. The geometric mean of both is taken.
    """
    assert run.typical
    assert run.slowest
    if run.others is None or not run.others.disturbed:
        return 0.0
    lacked_ms = (run.typical.starved_ms + run.slowest.starved_ms) / 2
    if not lacked_ms:  # the system does not tell
        lacking = (run.others.cores + run.others.wanted - run.others.of) / run.others.wanted
        lacked_ms = run.step_ms * min(1.0, lacking)
    return min(max(beyond_ms, math.sqrt(size) * lacked_ms), size * lacked_ms)
