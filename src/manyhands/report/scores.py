"""How good predictions are: their error against the aim, and how often their intervals held."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from manyhands.record.simulation import Validation

Item = TypeVar("Item")
Key = TypeVar("Key")
Name = Callable[[Validation], str]
"""What a row is called in one respect."""

Holding = Literal["right", "too few", "too many", "too few cases"]
"""What there is to say of how many intervals held: that intervals are too narrow, too wide, or neither."""

ERROR_PCT = 5.0
"""Median error of a step's time that is aimed at, where runs do not vary by more."""
NOISES = 2.0
"""Where they do, so many times their noise."""
HELD_PCT = (80.0, 97.0)
"""Share of the 90 % intervals that should hold."""
FEWEST = 20
"""Of fewer intervals than this, no share says anything."""


@dataclass(frozen=True)
class PredictionScore:
    """How good some predictions are, of which there is at least one."""

    cases: int
    error_pct: float
    """Median, without signs."""
    bias_pct: float
    """Median, with signs: above 0 where predictions are rather too slow."""
    noise_pct: float | None
    """Median of what runs of one configuration differ by; None where each was run once."""
    held: int

    @property
    def aim_pct(self) -> float:
        """The median error that is aimed at."""
        return max(ERROR_PCT, NOISES * (self.noise_pct or 0.0))

    @property
    def is_near(self) -> bool:
        """Whether the error is within the aim."""
        return self.error_pct <= self.aim_pct

    @property
    def held_pct(self) -> float:
        """Share of the intervals that held."""
        return 100 * self.held / self.cases

    @property
    def holding(self) -> Holding:
        """How many intervals held against how many should."""
        low, high = HELD_PCT
        if self.cases < FEWEST:
            return "too few cases"
        return "too few" if self.held_pct < low else "too many" if self.held_pct > high else "right"

    @property
    def is_held(self) -> bool | None:
        """Whether as many intervals held as should; None where there are too few cases to tell."""
        return None if self.holding == "too few cases" else self.holding == "right"


def counted(rows: Iterable[Validation]) -> list[Validation]:
    """Return the rows that say something: those whose ranks had a core each."""
    return [row for row in rows if not row.oversubscribed]


def score(rows: Iterable[Validation]) -> PredictionScore | None:
    """Judge predictions; None where none of them counts."""
    telling = counted(rows)
    if not telling:
        return None
    noises = [row.noise_pct for row in telling if row.noise_pct is not None]
    return PredictionScore(
        cases=len(telling),
        error_pct=statistics.median(abs(row.error_pct) for row in telling),
        bias_pct=statistics.median(row.error_pct for row in telling),
        noise_pct=statistics.median(noises) if noises else None,
        held=sum(row.held for row in telling),
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Gather what is alike, in the order in which it first comes."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
