"""What people see, on stderr: progress and the tables of runs; and what goes to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, final

from rich.console import Console

from manyhands.cli.bars import Bars, Part, clock, eta
from manyhands.cli.tables import Column, print_table
from manyhands.record.texts import duration, fixed, percent, rate, share, times, workers_name
from manyhands.watch import Observer, ignore

if TYPE_CHECKING:
    from manyhands.record import Pulse, RunRecord

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
        bars = Bars(people)
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


def pulse_parts(p: Pulse) -> list[Part]:
    """Say how a run is doing, what matters most first."""
    busy = p.compute_s + p.comm_s + p.wait_s
    split = (("compute", p.compute_s), ("comm", p.comm_s), ("wait", p.wait_s))
    parts = [
        Part(f"step {p.step:,}/{p.steps:,} {share(p.step, p.steps, 0)}"),
        Part(f"train loss {fixed(p.loss, 4)}", 1),
        Part("" if p.accuracy is None else f"accuracy {percent(100 * p.accuracy, 2)}", 2),
        Part(f"{rate(p.samples_per_s)} samples/s" if p.samples_per_s > 0 else "", 3),
        Part(f"epoch {p.epoch}/{p.epochs}", 5),
        Part(" ".join(f"{name} {share(s, busy, 0)}" for name, s in split) if busy > 0 else "", 4),
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
    bars, begun_s = Bars(people, transient=True), time.monotonic()
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
                *([Part(share(done, total, 0))] if total else []),
                Part(now, 1, cuts=True),
                Part(f"elapsed {clock(moment_s - begun_s)}", 2),
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


def print_side_by_side(console: Console, records: Sequence[RunRecord]) -> None:
    """Print the table of runs that should have given the same answer."""
    columns = [
        Column("run", left=True),
        Column("steps", 1),
        Column("train loss"),
        Column("test loss"),
        Column("accuracy"),
        Column("weights", left=True),
    ]
    rows = [
        [
            name_of(r),
            f"{r.steps:,}",
            fixed(_train_loss(r), 7),
            fixed(r.test_loss, 7),
            percent(100 * r.test_accuracy, 2),
            r.weights_sha256[:12],
        ]
        for r in records
    ]
    print_table(console, columns, rows)


def name_of(record: RunRecord) -> str:
    """Say engine and workers in short: `mpi ×2`, `hybrid 2×2`."""
    return workers_name(record.engine, record.workers, record.threads)


def print_runs(
    console: Console,
    records: Sequence[RunRecord],
    *,
    baseline: RunRecord | None = None,
    ids: bool = False,
    title: str = "",
) -> None:
    """Print the table of some runs; with a baseline, their speed-up over it."""
    columns = [
        Column("run", left=True),
        *([Column("id", 9, left=True)] if ids else []),
        Column("samples/s"),
        *([Column("speed-up")] if baseline else []),
        Column("train loss", 4),
        Column("test loss", 3),
        Column("accuracy"),
        *(Column(part, drop) for part, drop in (("compute", 7), ("comm", 6), ("wait", 5))),
        Column("total", 2),
    ]
    print_table(console, columns, [_run_cells(r, baseline, ids=ids) for r in records], title)


def _run_cells(r: RunRecord, baseline: RunRecord | None, *, ids: bool) -> list[str]:
    busy = r.compute_s + r.comm_s + r.wait_s
    timed = baseline is not None and baseline.samples_per_s and r.samples_per_s
    return [
        name_of(r),
        *([r.id] if ids else []),
        rate(r.samples_per_s),
        *([times(r.samples_per_s / baseline.samples_per_s if timed else None)] if baseline else []),
        fixed(_train_loss(r), 4),
        fixed(r.test_loss, 4),
        percent(100 * r.test_accuracy, 2),
        *(share(s, busy) for s in (r.compute_s, r.comm_s, r.wait_s)),
        duration(r.total_s),
    ]


def _train_loss(r: RunRecord) -> float | None:
    return r.train_loss[-1] if r.train_loss else None
