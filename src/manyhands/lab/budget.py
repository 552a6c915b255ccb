"""How many steps and repeats fit into the time that a sweep may take. No clock and no process is touched here."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.errors import check

MIN_REPEATS, MAX_REPEATS = 5, 15
"""Fewer say nothing about the spread; more hardly narrow an interval."""
MIN_STEPS = 25
"""Fewer are mostly warm-up."""
MIN_TRAIN_S = 0.5
"""Seconds of steps that a run should have, on average: starting it takes much longer, so that they cost little."""
SHARE = 0.95
"""Of the time that is left, what the runs may take: the statistics and the report come after them."""

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
class Choice:
    """The steps of each run, and the repeats of each cell."""

    steps: int
    repeats: int


def parse_duration(text: str) -> float:
    """Return the seconds of 90s, 5m, 1h, 1m30s, or of a plain number."""
    plain = re.fullmatch(_NUMBER, text.strip())
    found = _FORM.fullmatch(text.strip())
    parts = (plain[1],) if plain else tuple(found.groups()) if found else ()
    seconds = sum((float(part or 0) * 60.0**i for i, part in enumerate(reversed(parts))), 0.0)
    check(seconds > 0, f"a budget is written like 90s, 5m, 1h or 1m30s, got '{text}'")
    return seconds


def choose(pilots: Sequence[Pilot], left_s: float, *, own_steps: int, repeats: int = 0) -> Choice:
    """Return how long every run, and how often each cell, shall run in the seconds that are left.

    First the steps grow, up to those that the task itself would train; then the repeats, unless they are given.
    """
    fixed_s, step_s = sum(p.fixed_s for p in pilots), max(1e-9, sum(p.step_s for p in pilots))
    spare_s = max(len(pilots) * MIN_TRAIN_S, left_s * SHARE / (repeats or MIN_REPEATS) - fixed_s)
    steps = max(MIN_STEPS, min(own_steps, math.floor(spare_s / step_s)))
    if repeats:
        return Choice(steps, repeats)
    return Choice(steps, choose_repeats([p.takes_s(steps) for p in pilots], left_s))


def choose_repeats(takes_s: Sequence[float], left_s: float) -> int:
    """Return how often runs that take so long fit into the seconds that are left."""
    fit = math.floor(left_s * SHARE / max(1e-9, sum(takes_s)))
    return min(MAX_REPEATS, max(MIN_REPEATS, fit))
