"""How good predictions are: their error against the aim, and how often their intervals held."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from manyhands.record.simulation import Validation
from manyhands.record.texts import NOTHING, fixed, percent, plus_minus
from manyhands.report.tables import Grid

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
class Score:
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


def score(rows: Iterable[Validation]) -> Score | None:
    """Judge predictions; None where none of them counts."""
    telling = counted(rows)
    if not telling:
        return None
    noises = [row.noise_pct for row in telling if row.noise_pct is not None]
    return Score(
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


WORDS: dict[Holding, str] = {"right": "yes", "too few": "below", "too many": "above", "too few cases": NOTHING}
JUDGED = ("cases", "median error", "noise", "aim", "error in aim", "held", "share", "share in aim")
"""Columns of a score."""

MEANINGS = {
    "cases": "Configurations that were predicted and run; those with more ranks than cores are not counted",
    "median error": "Of the predicted step time against the median of the runs; half of the cases are nearer",
    "noise": "Standard deviation of a case's runs, over their mean; the median of the cases",
    "aim": f"{ERROR_PCT:g} %, or {NOISES:g} times the noise where that is more",
    "error in aim": "Whether the median error is within the aim",
    "held": "How often the measured median lies within the prediction's 90 % interval",
    "share": "The same as a percentage",
    "share in aim": f"Whether it is {HELD_PCT[0]:g} to {HELD_PCT[1]:g} %; not said of fewer than {FEWEST} cases",
}


def judged(found: Score | None) -> list[str]:
    """Return a score as texts of a table."""
    if found is None:
        return ["0", *[NOTHING] * (len(JUDGED) - 1)]
    return [
        str(found.cases),
        percent(found.error_pct),
        plus_minus(found.noise_pct),
        f"≤ {fixed(found.aim_pct, 1)} %",
        "yes" if found.is_near else "no",
        f"{found.held} of {found.cases}",
        percent(found.held_pct, 0),
        WORDS[found.holding],
    ]


def parts_table(rows: Sequence[Validation], parts: Iterable[Name]) -> tuple[Grid, list[str]]:
    """Judge all rows, then those of each task, engine and so on; return the table and how its rows are marked."""
    whole = score(rows)
    lines, marks = [["all", *judged(whole)]], [f"whole {_mark(whole)}".strip()]
    for part in parts:
        groups = grouped(rows, part)
        for name, own in groups.items() if len(groups) > 1 else ():
            lines.append([name, *judged(score(own))])
            marks.append(_mark(score(own)))
    return Grid(["predictions", *JUDGED], lines), marks


def combinations_table(rows: Sequence[Validation], parts: Mapping[str, Name]) -> tuple[Grid, list[str]]:
    """Judge each combination of a task, an engine and so on; return the table and how its rows are marked."""
    groups = grouped(rows, lambda row: tuple(name(row) for name in parts.values()))
    scores = [score(own) for own in groups.values()]
    lines = [[*names, *judged(found)] for names, found in zip(groups, scores, strict=True)]
    shown = len(parts) + len(JUDGED) - all(line[-1] == NOTHING for line in lines)  # mostly there are too few cases
    return Grid([*parts, *JUDGED][:shown], [line[:shown] for line in lines]), [_mark(found) for found in scores]


def _mark(found: Score | None) -> str:
    if found is None:
        return "shared"
    return "" if found.is_near and found.holding != "too few" else "failed"
