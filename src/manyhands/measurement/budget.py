"""What fits into the time that a sweep may take: cells, steps and repeats. No process is touched here."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from manyhands.errors import check
from manyhands.record import Cell
from manyhands.record.texts import duration

ENOUGH_REPEATS = 5
"""The fewest runs whose least and greatest say something: they hold the true median in 93.75 % of cases."""

MIN_REPEATS, MAX_REPEATS = ENOUGH_REPEATS, 15
"""Fewer say nothing about the spread; more hardly narrow an interval."""
MIN_STEPS = 25
"""Fewer are mostly warm-up."""
MIN_TRAIN_S = 0.5
"""Seconds of steps that a run should have, on average: starting it takes much longer, so that they cost little."""
PILOT_STEPS = (10, 200)
"""The fewest and the most steps of a pilot run, which may be all that there is time for."""
SHARE = 0.95
"""Of the time that is left, what the runs may take: the statistics and the report come after them."""
START_S = 3.0
"""What it takes to import torch, where nobody has seen how long it takes here."""
STARTS = {"mpi": 2.0, "hybrid": 2.0, "torch": 2.0, "ray": 5.0}
"""How many times as long as one process it takes to start those of an engine, one after the other."""
REPORT, END_S = 0.75, 1.0
"""Time to draw the report, as a share of what a process takes to start, and to end a run whose time is up."""
ROOMY = 1.5
"""How many times as long as the least a budget that is advised should be: what takes so long today may take longer."""

_NUMBER = r"(\d+(?:\.\d+)?)"
_FORM = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")


@dataclass(frozen=True)
class Pilot:
    """What a short run told about a cell."""

    fixed_s: float
    """Time of a run besides its steps: to start, read, test, end."""
    step_s: float

    def takes_s(self, steps: int) -> float:
        """Return the time of a run of so many steps."""
        return self.fixed_s + steps * self.step_s


@dataclass(frozen=True)
class RunLength:
    """The steps of each run, and the repeats of each cell."""

    steps: int
    repeats: int
    counts_pilot: bool = False
    """Whether the pilot is the first repeat, since there is no time to throw it away."""


@final
@dataclass
class Clock:
    """The time that a command has, from when it was given."""

    budget_s: float = math.inf
    spent_s: float = 0.0
    """Since the command was given, when this was made."""
    now: Callable[[], float] = time.perf_counter
    reserve_s: float = 0.0
    """What must be left after the last run."""
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
    """Return the seconds of 90s, 5m, 1h, 1m30s, or of a plain number."""
    plain = re.fullmatch(_NUMBER, text.strip())
    found = _FORM.fullmatch(text.strip())
    parts = (plain[1],) if plain else tuple(found.groups()) if found else ()
    seconds = sum((float(part or 0) * 60.0**i for i, part in enumerate(reversed(parts))), 0.0)
    check(seconds > 0, f"a budget is written like 90s, 5m, 1h or 1m30s, got '{text}'")
    return seconds


def plain_duration(seconds: float) -> str:
    """Write seconds as a budget is written, rounded up to what one would type: 40s, 3m."""
    return f"{10 * math.ceil(seconds / 10)}s" if seconds <= 120 else f"{math.ceil(seconds / 60)}m"


def choose(pilots: Sequence[Pilot], left_s: float, *, own_steps: int, repeats: int = 0) -> RunLength | None:
    """Return how long every run, and how often each cell, shall run in the seconds that are left; None if too few are.

    First the steps grow, up to those that the task itself would train; then the repeats, unless they are given.
    """
    fixed_s, step_s = sum(p.fixed_s for p in pilots), max(1e-9, sum(p.step_s for p in pilots))
    spare_s = max(len(pilots) * MIN_TRAIN_S, left_s * SHARE / (repeats or MIN_REPEATS) - fixed_s)
    steps = max(MIN_STEPS, min(own_steps, math.floor(spare_s / step_s)))
    fit = fitting([p.takes_s(steps) for p in pilots], left_s)
    return RunLength(steps, min(repeats or MAX_REPEATS, fit)) if fit >= (repeats or MIN_REPEATS) else None


def around_pilot(pilots: Sequence[Pilot], left_s: float, *, steps: int, repeats: int = 0) -> RunLength:
    """Return how often each cell shall run where time is short: the pilot, of so many steps, is the first repeat."""
    more = fitting([p.takes_s(steps) for p in pilots], left_s)
    return RunLength(steps, min(repeats or MIN_REPEATS, 1 + more), counts_pilot=True)


def fitting(takes_s: Sequence[float], left_s: float) -> int:
    """Return how often runs that take so long fit into the seconds that are left."""
    return math.floor(min(1e6, max(0.0, left_s) * SHARE / max(1e-9, sum(takes_s))))


def steps_of_pilot(step_s: float) -> int:
    """Return the steps of a pilot run: few of long ones."""
    fewest, most = PILOT_STEPS
    return min(most, max(fewest, round(MIN_TRAIN_S / max(step_s, 1e-9))))


def least_s(cells: Sequence[Cell], start_s: float, step_s: float) -> float:
    """Return about how long it takes to run every cell but the probes once, shortly."""
    compared = [cell for cell in cells if cell.role != "probe"]
    return sum(start_s * STARTS.get(cell.engine, 1.0) + steps_of_pilot(step_s) * step_s for cell in compared)


def too_short(budget: str, clock: Clock, cells: Sequence[Cell], takes_s: float) -> str:
    """Say that a budget is too short for the least, and which would do."""
    compared = sum(cell.role != "probe" for cell in cells)
    enough = plain_duration(ROOMY * (clock.elapsed_s + takes_s + clock.reserve_s))
    return (
        f"the least that says anything, each of {compared} cells once, takes about {duration(takes_s)}, and "
        f"{duration(max(0.0, clock.left_s))} are left for it of --budget {budget}; "
        f"give --budget {enough}, fewer cells, or --over-budget to take the time it needs"
    )
