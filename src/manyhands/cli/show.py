"""Print sentences and progress for people on stderr, and results on stdout."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, TypeAlias, final

import typer
from rich.console import Console

from manyhands.cli.bars import BarText, ProgressBars, clock, eta
from manyhands.record.texts import accuracy_text, duration, figure, fixed, rate, share
from manyhands.training.watch import Observer, ignore

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from manyhands.record.run import Pulse

    PartsOf: TypeAlias = Callable[[Pulse], list[BarText]]

people = Console(stderr=True, highlight=False)
"""Stderr, for people."""
results = Console(highlight=False, soft_wrap=True)
"""Stdout, for results."""

LINE_S = 10.0
"""Seconds after which a log gets another line about a command's progress."""
LONG_S = 20.0
"""Seconds from which on a log says how long one of many parts still takes."""


def say(*sentences: str, to: Console | None = None, style: str | None = None) -> None:
    """Print sentences as they are, a line each, neither folded nor with markup; on stderr unless `to` says where."""
    for sentence in sentences:
        (to or people).print(sentence, style=style, markup=False, emoji=False, soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a warning on stderr."""
    say(f"warning: {sentence}")


def say_kept(folder: Path, source: Path | None = None, what: str = "it") -> None:
    """Say where a record is kept, and which command draws `what`: the record, or the `source` it was added to."""
    say(f"kept in {folder}; to draw {what}: manyhands report {shlex.quote(str(source or folder))}")


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["manyhands", *sys.argv[1:]])


def print_json(text: str) -> None:
    """Print one JSON object on stdout, as it is."""
    sys.stdout.write(text + "\n")


def finish(record: BaseModel, *, as_json: bool) -> None:
    """Print the record as JSON if asked to; exit with status 130 if the user has stopped the command."""
    if as_json:
        print_json(record.model_dump_json())
    if getattr(record, "status", "") == "interrupted":
        raise typer.Exit(130)


@contextmanager
def bars_on_terminal(*, visible: bool = True, transient: bool = False) -> Iterator[ProgressBars | None]:
    """Yield progress bars on a terminal, None elsewhere and where they are not to be visible.

    What a user's model prints meanwhile goes to stderr: it must not mix with the result.
    """
    bars = ProgressBars(people, transient=transient) if visible and people.is_terminal else None
    with bars.progress if bars else nullcontext(), redirect_stdout(sys.stderr):
        yield bars


@contextmanager
def run_bars(*, visible: bool = True) -> Iterator[Callable[[str, PartsOf], Observer]]:
    """Yield a function that makes the observer of a run from its label and the texts beside its bar.

    A terminal shows a bar for each run, a log a line at every tenth.
    """
    with bars_on_terminal(visible=visible) as bars:

        def observer(label: str, parts: PartsOf) -> Observer:
            if not visible:
                return ignore
            if bars is None:
                return _Lines(label, parts)
            bar = bars.add(label.removesuffix(":"))
            return lambda p: bars.show(bar, p.step, p.steps, parts(p), left_s=left_s(p))

        yield observer


@contextmanager
def progress(label: str, *, visible: bool = True) -> Iterator[Observer]:
    """Yield an observer that shows the progress of one training run."""
    with run_bars(visible=visible) as observer:
        yield observer(label, pulse_parts)


@final
class _Lines:
    """Prints a line at every tenth of a run, for logs."""

    def __init__(self, label: str, parts: PartsOf) -> None:
        self._label, self._parts, self._tenths = label, parts, 0

    def __call__(self, p: Pulse) -> None:
        tenths = 10 * p.step // max(1, p.steps)
        if tenths > self._tenths:
            self._tenths = tenths
            step, *rest = [part.text for part in self._parts(p)]
            say(" · ".join([f"{self._label} {step}", eta(left_s(p)), *rest]))


def left_s(p: Pulse) -> float | None:
    """Return the time that a run still takes; None where no time passes, as on virtual clocks that stand still."""
    return p.eta_s if p.samples_per_s > 0 else None


LEAST_SHOWN = 0.02
"""Share of the time from which waiting for data is shown apart from computing."""


def pulse_parts(p: Pulse) -> list[BarText]:
    """Return the texts beside a training run's bar."""
    busy = p.compute_s + p.comm_s + p.wait_s
    data = [("data", p.data_s)] if p.data_s >= LEAST_SHOWN * busy > 0 else []
    compute_s = p.compute_s - sum(s for _, s in data)
    split = (("compute", compute_s), *data, ("comm", p.comm_s), ("wait", p.wait_s))
    parts = [
        BarText(f"step {p.step:,}/{p.steps:,} {share(p.step, p.steps, 0)}"),
        BarText(f"train loss {fixed(p.loss, 4)}", 1),
        BarText(_quality(p), 2),
        BarText(f"{rate(p.samples_per_s)} samples/s" if p.samples_per_s > 0 else "", 3),
        BarText(f"epoch {p.epoch}/{p.epochs}", 5),
        BarText(" ".join(f"{name} {share(s, busy, 0)}" for name, s in split) if busy > 0 else "", 4),
    ]
    return [part for part in parts if part.text]


def _quality(p: Pulse) -> str:
    """Return the test accuracy, or the first metric of a task without one."""
    if p.accuracy is not None:
        return f"accuracy {accuracy_text(p.accuracy)}"
    return next((f"{name} {figure(value, 4)}" for name, value in p.metrics.items()), "")


@contextmanager
def meter() -> Iterator[Meter]:
    """Yield a meter for a command of several phases; its bar disappears at the end."""
    with bars_on_terminal(transient=True) as bars:
        yield Meter(bars)


@final
class Meter:
    """Shows the progress of a command's phases: on a bar, or in a log at every tenth and after a long silence."""

    def __init__(self, bars: ProgressBars | None = None) -> None:
        self._bars, self._begun_s = bars, time.monotonic()
        self._bar = bars.add("starting") if bars else None
        self._phase, self._phase_begun_s = "", self._begun_s
        self._tenths, self._printed_s = 0, self._begun_s

    def __call__(
        self, phase: str, done: float, total: float | None, now: str, *, line: bool = False, one_s: float | None = None
    ) -> None:
        """Show that `done` of `total` is finished and that `now` is under way.

        `line` asks for a line in a log. `one_s` is the time left for what is under way, of a phase whose parts differ
        too much to predict the rest.
        """
        moment_s = time.monotonic()
        if phase != self._phase:  # one phase tells nothing about how long the next takes
            self._phase, self._phase_begun_s, self._tenths = phase, moment_s, 0
        if self._bars is None or self._bar is None:
            self._print(done, total, now, line, one_s)
            return
        far = [BarText(share(done, total, 0))] if total else []
        parts = [*far, BarText(now, 1, cuts=True), BarText(f"elapsed {clock(moment_s - self._begun_s)}", 2)]
        left_s, label = one_s, "ETA of this one"
        if one_s is None:
            label = "ETA"
            left_s = (moment_s - self._phase_begun_s) / done * (total - done) if total and done > 0 else None
        self._bars.show(self._bar, done, total, parts, name=phase, left_s=left_s, label=label)

    def _print(self, done: float, total: float | None, now: str, line: bool, one_s: float | None) -> None:
        tenths = int(10 * done / total) if total else 0
        if tenths < self._tenths:
            self._tenths = 0
        if line or tenths > self._tenths or time.monotonic() - self._printed_s > LINE_S:
            self._tenths, self._printed_s = tenths, time.monotonic()
            far = f"{100 * done / total:3.0f} % " if total else ""
            left = f", about {duration(round(one_s))} left for it" if one_s and one_s > LONG_S else ""
            say(f"{far}{now}{left}")
