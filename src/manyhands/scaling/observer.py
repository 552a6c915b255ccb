"""Callbacks for the progress, messages and questions of a sweep."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.record.sweep import Cell, Kind, Measure, Predictions, Row

PILOT = -1
"""The repeat number of the pilot runs, before the first repeat."""


@dataclass(frozen=True)
class SweepPulse:
    """The progress of a sweep, for the progress bar."""

    cell: Cell
    repeat: int
    """Counted from 0; `PILOT` before the first."""
    repeats: int
    done: int
    """Number of ended runs: of the pilot round, or of all repeats."""
    total: int
    eta_s: float | None
    """Estimated seconds left; None where nothing is known yet."""
    measure: Measure | None = None
    """The run that has just ended; None when one starts."""


@dataclass(frozen=True)
class SweepObserver:
    """Callbacks for progress, for messages to the user, and for questions."""

    pulse: Callable[[SweepPulse], None] = lambda pulse: None
    say: Callable[[str], None] = lambda sentence: None
    confirm: Callable[[str], bool] = lambda sentence: False
    """Return whether to go on where a budget is too short."""


NOBODY = SweepObserver()

Predict = Callable[[Kind, str, Sequence[Row], Mapping[str, Any], float], Predictions]
"""Predicts rows of a kind of sweep of a task, with some options of the runs, within a number of seconds.

A sweep is told how, since the simulator builds on what sweeps build on, and on more.
"""
