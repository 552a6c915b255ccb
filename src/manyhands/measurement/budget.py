"""Choose steps and repeats that fit into a time budget. Pure arithmetic: nothing is run here."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from manyhands.errors import check
from manyhands.record.sweep import Cell
from manyhands.record.texts import duration

ENOUGH_REPEATS = 5
"""The fewest runs whose minimum and maximum are worth showing: they enclose the true median in 93.75 % of cases."""
MIN_REPEATS, MAX_REPEATS = ENOUGH_REPEATS, 15
"""Repeats that a budget chooses: fewer say nothing about the spread; more hardly narrow an interval."""
MIN_STEPS = 25
"""The fewest steps of a run: fewer are mostly warm-up."""
MIN_TRAIN_S = 0.5
"""Seconds of steps that a run should have, on average: starting it takes much longer, so that they cost little."""
PILOT_STEPS = (10, 200)
"""The fewest and the most steps of a pilot run, which may be all that there is time for."""
SHARE = 0.95
"""Share of the remaining time that the runs may take; the statistics and the report come after them."""
START_S = 3.0
"""Assumed time to start a process that imports torch, where it has not been measured."""
STARTS = {"mpi": 2.0, "hybrid": 2.0, "torch": 2.0, "ray": 5.0}
"""Time to start the processes of an engine, as a multiple of the time to start one process."""
REPORT, END_S = 0.75, 1.0
"""Time to draw the report, as a share of the time to start a process; seconds to end a run at its time limit."""
ROOMY = 1.5
"""The recommended budget as a multiple of the smallest possible: the machine may be slower tomorrow."""

_NUMBER = r"(\d+(?:\.\d+)?)"
_FORM = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")


@dataclass(frozen=True)
class Pilot:
    """The timing of a short run of a cell."""

    fixed_s: float
    """Time of a run besides its steps: to start, read data, test, end."""
    step_s: float

    def takes_s(self, steps: int) -> float:
        """Return the time of a run of `steps` steps."""
        return self.fixed_s + steps * self.step_s


@dataclass(frozen=True)
class RunLength:
    """The steps of each run, and the repeats of each cell."""

    steps: int
    repeats: int
    counts_pilot: bool = False
    """Whether the pilot counts as the first repeat, for lack of time."""


@final
@dataclass
class Clock:
    """The time that a command has, counted from when the user gave it."""

    budget_s: float = math.inf
    spent_s: float = 0.0
    """Seconds since the command was given, when the clock is made."""
    now: Callable[[], float] = time.perf_counter
    reserve_s: float = 0.0
    """Time to keep for after the last run."""
    begun_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.begun_s = self.now() - self.spent_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command was given."""
        return self.now() - self.begun_s

    @property
    def left_s(self) -> float:
        """Seconds that are left for runs."""
        return self.budget_s - self.elapsed_s - self.reserve_s


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 90s, 5m, 1h, 1m30s, or a plain number."""
    plain = re.fullmatch(_NUMBER, text.strip())
    units = _FORM.fullmatch(text.strip())
    parts = (plain[1],) if plain else tuple(units.groups()) if units else ()
    seconds = sum((float(part or 0) * 60.0**i for i, part in enumerate(reversed(parts))), 0.0)
    check(seconds > 0, f"a budget is written like 90s, 5m, 1h or 1m30s, got '{text}'")
    return seconds


def plain_duration(seconds: float) -> str:
    """Write seconds in the form of `--budget`, rounded up: 40s, 3m."""
    return f"{10 * math.ceil(seconds / 10)}s" if seconds <= 120 else f"{math.ceil(seconds / 60)}m"


def choose(pilots: Sequence[Pilot], left_s: float, *, own_steps: int, repeats: int = 0) -> RunLength | None:
    """Return the steps of every run and the repeats of each cell that fit into `left_s`; None if too little is left.

    First the steps grow, up to `own_steps`, which the task itself would train; then the repeats, unless given.
    """
    fixed_s, step_s = sum(p.fixed_s for p in pilots), max(1e-9, sum(p.step_s for p in pilots))
    spare_s = max(len(pilots) * MIN_TRAIN_S, left_s * SHARE / (repeats or MIN_REPEATS) - fixed_s)
    steps = max(MIN_STEPS, min(own_steps, math.floor(spare_s / step_s)))
    fit = fitting([p.takes_s(steps) for p in pilots], left_s)
    return RunLength(steps, min(repeats or MAX_REPEATS, fit)) if fit >= (repeats or MIN_REPEATS) else None


def around_pilot(pilots: Sequence[Pilot], left_s: float, *, steps: int, repeats: int = 0) -> RunLength:
    """Return the repeats that fit where time is short: the pilot, of `steps` steps, counts as the first one."""
    more = fitting([p.takes_s(steps) for p in pilots], left_s)
    return RunLength(steps, min(repeats or MIN_REPEATS, 1 + more), counts_pilot=True)


def fitting(takes_s: Sequence[float], left_s: float) -> int:
    """Return how often a round of runs that take `takes_s` fits into `left_s`."""
    return math.floor(min(1e6, max(0.0, left_s) * SHARE / max(1e-9, sum(takes_s))))


def steps_of_pilot(step_s: float) -> int:
    """Return the steps of a pilot run: the fewer, the longer a step takes."""
    fewest, most = PILOT_STEPS
    return min(most, max(fewest, round(MIN_TRAIN_S / max(step_s, 1e-9))))


def least_s(cells: Sequence[Cell], start_s: float, step_s: float) -> float:
    """Estimate the time of one pilot run of every cell but the probes."""
    compared = [cell for cell in cells if cell.role != "probe"]
    return sum(start_s * STARTS.get(cell.engine, 1.0) + steps_of_pilot(step_s) * step_s for cell in compared)


def too_short(budget: str, clock: Clock, cells: Sequence[Cell], takes_s: float) -> str:
    """Say that a budget is too short for one run of each cell, and recommend one."""
    compared = sum(cell.role != "probe" for cell in cells)
    enough = plain_duration(ROOMY * (clock.elapsed_s + takes_s + clock.reserve_s))
    return (
        f"one run of each of {compared} cells takes about {duration(takes_s)}, but only "
        f"{duration(max(0.0, clock.left_s))} are left of --budget {budget}; "
        f"give --budget {enough}, fewer cells, or --over-budget to exceed it"
    )
