"""Who is shown how a sweep is doing, and asked where it cannot keep its budget."""

from collections.abc import Callable
from dataclasses import dataclass

from manyhands.record import Cell, Measure

PILOT = -1
"""The round before the first repeat."""


@dataclass(frozen=True)
class SweepPulse:
    """How a sweep is doing: what the progress bar shows."""

    cell: Cell
    repeat: int
    """From 0; `PILOT` before the first."""
    repeats: int
    done: int
    """Runs that have ended: of the pilot round, or of all repeats."""
    total: int
    eta_s: float | None
    """Seconds left, where that can be told."""
    measure: Measure | None = None
    """What has just been measured; None when a run starts."""


@dataclass(frozen=True)
class SweepObserver:
    """Who is shown how a sweep is doing, and told what they should know."""

    pulse: Callable[[SweepPulse], None] = lambda pulse: None
    say: Callable[[str], None] = lambda sentence: None
    confirm: Callable[[str], bool] = lambda sentence: False
    """Asked whether to go on where a budget is too short."""


NOBODY = SweepObserver()
