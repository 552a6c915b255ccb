"""What people see of a command's progress, on stderr; and what goes to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, final

from rich.console import Console

from manyhands.cli.bars import BarText, ProgressBars, clock, eta
from manyhands.record.texts import duration, fixed, percent, rate, share
from manyhands.training.watch import Observer, ignore

if TYPE_CHECKING:
    from manyhands.record import Pulse

people = Console(stderr=True, highlight=False)
"""Where people look."""

results = Console(highlight=False, soft_wrap=True)
"""Where results go."""

LINE_S = 10.0
"""Seconds after which a log is told again how far a command is."""
LONG_S = 20.0
"""Seconds from which on a log is told how long one of many things goes on."""


def print_json(text: str) -> None:
    """Print one JSON object on stdout, as it is."""
    sys.stdout.write(text + "\n")


@contextmanager
def progress(label: str, *, visible: bool = True) -> Iterator[Observer]:
    """Draw a live bar on a terminal; elsewhere print a line now and then."""
    if not visible:
        yield ignore
    elif people.is_terminal:
        bars = ProgressBars(people)
        with bars.progress:
            bar = bars.add(label)
            yield lambda p: bars.show(bar, p.step, p.steps, pulse_parts(p), left_s=left_s(p))
    else:
        yield _Lines(label)


@final
class _Lines:
    """A line at every tenth of the run, for logs."""

    def __init__(self, label: str) -> None:
        self._label, self._tenths = label, 0

    def __call__(self, p: Pulse) -> None:
        tenths = 10 * p.step // max(1, p.steps)
        if tenths > self._tenths:
            self._tenths = tenths
            step, *rest = [part.text for part in pulse_parts(p)]
            line = " · ".join([f"{self._label} {step}", eta(left_s(p)), *rest])
            people.print(line, markup=False, soft_wrap=True)


def left_s(p: Pulse) -> float | None:
    """Return the time that a run still takes; None where no time passes, as on virtual clocks that stand still."""
    return p.eta_s if p.samples_per_s > 0 else None


def pulse_parts(p: Pulse) -> list[BarText]:
    """Say how a run is doing, what matters most first."""
    busy = p.compute_s + p.comm_s + p.wait_s
    split = (("compute", p.compute_s), ("comm", p.comm_s), ("wait", p.wait_s))
    parts = [
        BarText(f"step {p.step:,}/{p.steps:,} {share(p.step, p.steps, 0)}"),
        BarText(f"train loss {fixed(p.loss, 4)}", 1),
        BarText("" if p.accuracy is None else f"accuracy {percent(100 * p.accuracy, 2)}", 2),
        BarText(f"{rate(p.samples_per_s)} samples/s" if p.samples_per_s > 0 else "", 3),
        BarText(f"epoch {p.epoch}/{p.epochs}", 5),
        BarText(" ".join(f"{name} {share(s, busy, 0)}" for name, s in split) if busy > 0 else "", 4),
    ]
    return [part for part in parts if part.text]


class Tell(Protocol):
    """Shows how far a phase of a command is, and what is being done."""

    def __call__(
        self, phase: str, done: float, total: float | None, now: str, *, line: bool = False, one_s: float | None = None
    ) -> None:
        """Show it; `line` asks for a line of its own where there is no bar.

        `one_s` is the time left for what is being done, where parts of a phase differ so much that no more is known.
        """


@contextmanager
def meter() -> Iterator[Tell]:
    """Draw a bar on a terminal; elsewhere print a line at every tenth of a phase, and when long nothing was said."""
    if not people.is_terminal:
        yield _Said()
        return
    bars, begun_s = ProgressBars(people, transient=True), time.monotonic()
    with bars.progress:
        bar, before, since_s = bars.add("starting"), "", begun_s

        def draw(
            phase: str,
            done: float,
            total: float | None,
            now: str,
            *,
            line: bool = False,
            one_s: float | None = None,
        ) -> None:
            nonlocal before, since_s
            moment_s = time.monotonic()
            if phase != before:  # one phase tells nothing about how long the next takes
                before, since_s = phase, moment_s
            parts = [
                *([BarText(share(done, total, 0))] if total else []),
                BarText(now, 1, cuts=True),
                BarText(f"elapsed {clock(moment_s - begun_s)}", 2),
            ]
            whole_s = (moment_s - since_s) / done * (total - done) if total and done > 0 else None
            label = "ETA" if one_s is None else "ETA of this one"
            bars.show(bar, done, total, parts, name=phase, left_s=whole_s if one_s is None else one_s, label=label)

        yield draw


@final
class _Said:
    """Lines about how far a command is, for logs."""

    def __init__(self) -> None:
        self._phase, self._tenths, self._moment_s = "", 0, time.monotonic()

    def __call__(
        self, phase: str, done: float, total: float | None, now: str, *, line: bool = False, one_s: float | None = None
    ) -> None:
        tenths = int(10 * done / total) if total else 0
        if phase != self._phase or tenths < self._tenths:
            self._phase, self._tenths = phase, 0
        if line or tenths > self._tenths or time.monotonic() - self._moment_s > LINE_S:
            self._tenths, self._moment_s = tenths, time.monotonic()
            far = f"{100 * done / total:3.0f} % " if total else ""
            left = f", about {duration(round(one_s))} left for it" if one_s and one_s > LONG_S else ""
            people.print(f"{far}{now}{left}", markup=False, soft_wrap=True)
