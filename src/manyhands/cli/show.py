"""What people see, on stderr: the progress bar and tables; and what goes to stdout."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from manyhands.launch.base import Observer
from manyhands.record import Pulse, RunRecord
from manyhands.record.texts import workers_name
from manyhands.run import ignore

people = Console(stderr=True, highlight=False)
"""Where people look."""

results = Console(highlight=False, soft_wrap=True)
"""Where results go."""

LINE_S = 10.0
"""Seconds after which a log is told again how far a command is."""


def print_json(text: str) -> None:
    """Print one JSON object on stdout, as it is."""
    sys.stdout.write(text + "\n")


@contextmanager
def progress(label: str, *, visible: bool = True) -> Iterator[Observer]:
    """Draw a live bar on a terminal; elsewhere print a line now and then."""
    if not visible:
        yield ignore
    elif people.is_terminal:
        with _bar() as bar:
            task = bar.add_task(label, total=None, rest="starting")
            yield lambda p: bar.update(task, completed=p.step, total=p.steps, rest=_rest(p))
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
            people.print(f"{self._label} step {p.step}/{p.steps} {_rest(p)}", markup=False, soft_wrap=True)


class Tell(Protocol):
    """Shows how far a phase of a command is, and what is being done."""

    def __call__(self, phase: str, done: float, total: float | None, now: str, *, line: bool = False) -> None:
        """Show it; `line` asks for a line of its own where there is no bar."""


@contextmanager
def meter() -> Iterator[Tell]:
    """Draw a bar on a terminal; elsewhere print a line at every tenth of a phase, and when long nothing was said."""
    if not people.is_terminal:
        yield _Said()
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[now]}"))
    with Progress(*columns, TimeRemainingColumn(), TimeElapsedColumn(), console=people, transient=True) as bars:
        bar, before = bars.add_task("starting", total=None, now=""), ""

        def draw(phase: str, done: float, total: float | None, now: str, *, line: bool = False) -> None:
            nonlocal before
            if phase != before:  # one phase tells nothing about how long the next takes
                before = phase
                bars.reset(bar, description=phase)
            bars.update(bar, completed=done, total=total, now=escape(f"{_percent(done, total)}{now}"))

        yield draw


@final
class _Said:
    """Lines about how far a command is, for logs."""

    def __init__(self) -> None:
        self._phase, self._tenths, self._moment_s = "", 0, time.monotonic()

    def __call__(self, phase: str, done: float, total: float | None, now: str, *, line: bool = False) -> None:
        tenths = int(10 * done / total) if total else 0
        if phase != self._phase or tenths < self._tenths:
            self._phase, self._tenths = phase, 0
        if line or tenths > self._tenths or time.monotonic() - self._moment_s > LINE_S:
            self._tenths, self._moment_s = tenths, time.monotonic()
            people.print(f"{_percent(done, total)}{now}", markup=False, soft_wrap=True)


def _percent(done: float, total: float | None) -> str:
    return f"{100 * done / total:3.0f} % " if total else ""


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[rest]}"),
        console=people,
    )


def _rest(p: Pulse) -> str:
    total = max(p.compute_s + p.comm_s + p.wait_s, 1e-9)
    split = " ".join(
        f"{name} {100 * s / total:.0f}%"
        for name, s in (("compute", p.compute_s), ("comm", p.comm_s), ("wait", p.wait_s))
    )
    accuracy = f"acc {100 * p.accuracy:.2f}% · " if p.accuracy is not None else ""
    return (
        f"epoch {p.epoch}/{p.epochs} · loss {p.loss:.4f} · {accuracy}{p.samples_per_s:,.0f} samples/s · "
        f"ETA {clock(p.eta_s)} · {split}"
    )


def clock(seconds: float) -> str:
    """Write a time as a clock would: 1:05, 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def side_by_side(records: Sequence[RunRecord]) -> Table:
    """Make the table of runs that should have given the same answer."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("run", "steps", "train loss", "test loss", "accuracy", "weights"):
        table.add_column(heading, justify="left" if heading in ("run", "weights") else "right", no_wrap=True)
    for r in records:
        losses = (f"{r.train_loss[-1]:.7f}", f"{r.test_loss:.7f}")
        table.add_row(name_of(r), f"{r.steps:,}", *losses, f"{100 * r.test_accuracy:.2f} %", r.weights_sha256[:12])
    return table


def name_of(record: RunRecord) -> str:
    """Say engine and workers in short: `mpi ×2`, `hybrid 2×2`."""
    return workers_name(record.engine, record.workers, record.threads)


def table_of(records: Sequence[RunRecord], *, baseline: RunRecord | None = None, title: str = "") -> Table:
    """Make the table of some runs; with a baseline, their speed-up over it."""
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True)
    speed = ["samples/s", "speed-up"] if baseline else ["samples/s"]
    for heading in (*speed, "accuracy", "loss", "compute", "comm", "wait", "total"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in records:
        busy = max(r.compute_s + r.comm_s + r.wait_s, 1e-9)
        speed_up = [f"{r.samples_per_s / baseline.samples_per_s:.2f}×"] if baseline else []
        table.add_row(
            name_of(r),
            f"{r.samples_per_s:,.0f}",
            *speed_up,
            f"{100 * r.test_accuracy:.2f} %",
            f"{r.test_loss:.4f}",
            *(f"{100 * s / busy:.1f} %" for s in (r.compute_s, r.comm_s, r.wait_s)),
            f"{r.total_s:.1f} s",
        )
    return table
