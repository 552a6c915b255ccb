"""Scores of predictions: their error against the aim, and how many runs their intervals held."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from manyhands.record.simulation import Validation

Item = TypeVar("Item")
Key = TypeVar("Key")
Name = Callable[[Validation], str]
"""Reads one part of a row's name, such as its engine."""

Holding = Literal["right", "too few", "too many", "too few runs"]
"""Verdict on the share of runs within their intervals: as it should be, too narrow, too wide, or no verdict."""

ERROR_PCT = 5.0
"""Aim for the median error of a step's time, where runs do not vary by more."""
HELD_PCT = (85.0, 95.0)
"""Aim for the share of runs within their 90 % intervals."""
FEWEST = 20
"""Fewest runs whose share is judged."""


@dataclass(frozen=True)
class PredictionScore:
    """How good some predictions are, of which there is at least one."""

    cases: int
    error_pct: float
    """Median, without signs."""
    bias_pct: float
    """Median, with signs: above 0 where predictions are rather too slow."""
    noise_pct: float | None
    """Median of the runs' noise over the configurations; None where each was run once."""
    runs: int
    held: int
    """Runs within their prediction's interval."""

    @property
    def aim_pct(self) -> float:
        """Aim for the median error: `ERROR_PCT`, or the noise of the runs where that is more."""
        return max(ERROR_PCT, self.noise_pct or 0.0)

    @property
    def is_near(self) -> bool:
        """Whether the median error is within the aim."""
        return self.error_pct <= self.aim_pct

    @property
    def held_pct(self) -> float:
        """Share of the runs within their intervals."""
        return 100 * self.held / self.runs

    @property
    def holding(self) -> Holding:
        """Verdict on the share of the runs within their intervals."""
        low, high = HELD_PCT
        if self.runs < FEWEST:
            return "too few runs"
        return "too few" if self.held_pct < low else "too many" if self.held_pct > high else "right"


def counted(rows: Iterable[Validation]) -> list[Validation]:
    """Return the rows whose ranks had a core each, which alone are counted."""
    return [row for row in rows if not row.oversubscribed]


def score(rows: Iterable[Validation]) -> PredictionScore | None:
    """Score the rows that are counted; None without any."""
    cases = counted(rows)
    if not cases:
        return None
    noises = [row.noise_pct for row in cases if row.noise_pct is not None]
    return PredictionScore(
        cases=len(cases),
        error_pct=statistics.median(abs(row.error_pct) for row in cases),
        bias_pct=statistics.median(row.error_pct for row in cases),
        noise_pct=statistics.median(noises) if noises else None,
        runs=sum(len(row.measured_ms) for row in cases),
        held=sum(row.held for row in cases),
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, in the order in which the keys first appear."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
