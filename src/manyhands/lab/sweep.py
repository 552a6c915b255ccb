"""A sweep: every cell measured several times, in turn, so that what changes on the machine meets all of them alike."""

import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, NoReturn, final

from manyhands import facts, tasks
from manyhands.errors import UserError, check
from manyhands.lab.analyse import analyse
from manyhands.lab.asked import Asked, ask, check_kind, check_may_start, spec_of_task
from manyhands.lab.budget import Pilot, choose, choose_repeats
from manyhands.lab.cells import make_cells, num_steps, own_steps, run_options, why_not
from manyhands.lab.measure import measure
from manyhands.lab.store import append_measure, open_sweep, read_measures, read_record, sweep_to_resume
from manyhands.record import Cell, Measure, SweepDir, SweepRecord, write_atomically
from manyhands.tasks import Task

PILOT = -1
"""The round before the first repeat."""
PILOT_STEPS = 20
PILOT_TIMEOUT_S = 600.0
TIMEOUT_S = 3600.0
"""How long a run may take of which nothing is known yet."""
PATIENCE = 10.0
"""How many times as long as expected a run may take, and a minute more."""
MAX_FAILURES = 2
"""Failures in a row after which a cell is not tried again."""


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


NOBODY = SweepObserver()


class Swept(NamedTuple):
    """A sweep that has ended or was stopped."""

    folder: SweepDir
    record: SweepRecord


def scale(
    kind: str,
    task: str | Task,
    *,
    out: str | Path = "scales",
    resume: bool | str = False,
    observe: SweepObserver = NOBODY,
    **options: Any,
) -> SweepRecord:
    """Measure how a task scales, with the options of `manyhands scale`; `kind` is strong or weak.

    >>> record = scale("strong", "mlp", workers=[1, 2], engines=["threads", "mpi"], budget="2m")  # doctest: +SKIP
    """
    return sweep(kind, task, out=Path(out), resume=resume, observe=observe, options=options).record


def sweep(
    kind: str, task: str | Task, *, out: Path, resume: bool | str, observe: SweepObserver, options: Mapping[str, Any]
) -> Swept:
    """Do as `scale` does, and tell where all is kept: a sweep that is resumed may lie elsewhere than under `out`."""
    check_may_start()
    if resume:
        _check_nothing_given(options)
        named = resume if isinstance(resume, str) else ""
        folder = sweep_to_resume(out, check_kind(kind), spec_of_task(task), named)
        asked = Asked.from_toml(folder.toml)
        marks = _marks(asked)
    else:
        asked = ask(check_kind(kind), spec_of_task(task), options)
        marks = _marks(asked)
        folder = open_sweep(out, asked)
    work = _Sweep(folder, asked, marks, observe)
    with _ended_by_signals():
        try:
            work.run()
        except KeyboardInterrupt:
            return Swept(folder, work.finish("interrupted"))
        return Swept(folder, work.finish("complete"))


def _check_nothing_given(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        check(value is None, f"a resumed sweep keeps what it was asked for; leave --{name.replace('_', '-')} out")


def _marks(asked: Asked) -> dict[str, str]:
    """Return why cells cannot run, by their keys."""
    task = tasks.load(asked.task)
    marks = {cell.key: reason for cell in make_cells(asked) if (reason := why_not(asked, cell, task))}
    _check_not_all(asked, marks)
    return marks


def _check_not_all(asked: Asked, reasons: Mapping[str, str]) -> None:
    """Refuse a sweep of which nothing can run but one worker alone."""
    compared = [cell.key for cell in make_cells(asked) if cell.role == "cell"]
    if all(key in reasons for key in compared):
        raise UserError(f"nothing of this sweep can run: {reasons[compared[0]]}")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end a sweep as Ctrl-C does; outside the main thread, where Python forbids it, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@final
class _Sweep:
    """A sweep that is going on, or goes on again."""

    def __init__(self, folder: SweepDir, asked: Asked, marks: Mapping[str, str], observe: SweepObserver) -> None:
        self._folder, self._asked, self._observe = folder, asked, observe
        self._begun = time.perf_counter()
        self._cells = make_cells(asked)
        self._measures = read_measures(folder)
        self._marks = marks
        self._failures: Counter[str] = Counter()
        self._failed_in_pilot: set[str] = set()
        self._takes_s: dict[str, float] = {}
        for known in self._measures:
            self._learn(known, known.total_s)

    def run(self) -> None:
        """Measure all that is not measured yet."""
        try:
            self._run()
        finally:
            self._tidy()

    def _run(self) -> None:
        self._mark()
        if self._asked.needs_pilot:
            self._choose(self._pilot())
        repeats = self._asked.repeats
        todo = [(repeat, cell) for repeat in range(repeats) for cell in self._round(repeat)]
        done = {(m.cell, m.repeat) for m in self._measures}
        for i, (repeat, cell) in enumerate(todo):
            if (cell.key, repeat) in done or self._failures[cell.key] >= MAX_FAILURES:
                continue
            pulse = SweepPulse(cell, repeat, repeats, i, len(todo), self._left_s(todo[i:]))
            self._keep(self._measured(pulse, num_steps(self._asked, cell), self._folder.runs))

    def _tidy(self) -> None:
        """Remove what the pilot left, and the folders of runs that failed or were ended: nothing names them."""
        shutil.rmtree(self._pilot_folder, ignore_errors=True)
        named = {run.run for run in self._measures}
        for folder in self._folder.runs.glob("*"):
            if f"{folder.parent.name}/{folder.name}" not in named:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _pilot_folder(self) -> Path:
        return self._folder.path / "pilot"

    def finish(self, status: Literal["complete", "interrupted"]) -> SweepRecord:
        """Work out what the runs say together, and write it down."""
        asked, cells, measures = self._asked, self._cells, self._measures
        found = analyse(asked.kind, cells, measures, facts.cores())
        record = SweepRecord(
            id=self._folder.path.name,
            kind=asked.kind,
            status=status,
            task=asked.task,
            command=asked.command,
            started=asked.started,
            wall_s=self._wall_before_s() + time.perf_counter() - self._begun,
            repeats=asked.repeats,
            steps=num_steps(asked, cells[0]),
            cells=cells,
            measures=measures,
            rows=found.rows,
            fits=found.fits,
            findings=found.findings,
            hardware=facts.hardware(),
            versions=facts.versions(),
        )
        write_atomically(self._folder.record, record.model_dump_json(indent=2) + "\n")
        return record

    def _round(self, repeat: int) -> list[Cell]:
        """Return the cells in this repeat's order: forth and back, so that none always comes after the same."""
        cells = [cell for cell in self._cells if cell.key not in self._marks]
        return cells if repeat % 2 == 0 else cells[::-1]

    def _pilot(self) -> dict[str, Pilot]:
        """Run every cell shortly; its figures tell how long others take, and are thrown away."""
        cells, pilots, reasons = self._round(0), dict[str, Pilot](), dict(self._marks)
        for i, cell in enumerate(cells):
            left_s = max(0.0, self._asked.budget_s - (time.perf_counter() - self._begun))
            begun = time.perf_counter()
            pulse = SweepPulse(cell, PILOT, self._asked.repeats, i, len(cells), left_s)
            run = self._measured(pulse, PILOT_STEPS, self._pilot_folder)
            if run.failed:
                reasons[cell.key] = run.failed
                self._failed_in_pilot.add(cell.key)
            else:
                pilots[cell.key] = pilot_of(run, time.perf_counter() - begun)
        self._check_some_ran(reasons)
        return pilots

    def _check_some_ran(self, reasons: Mapping[str, str]) -> None:
        try:
            _check_not_all(self._asked, reasons)
        except UserError:
            shutil.rmtree(self._folder.path, ignore_errors=True)  # nothing to go on with
            raise

    def _choose(self, pilots: Mapping[str, Pilot]) -> None:
        """Choose steps and repeats, and keep them, so that a sweep that is stopped goes on with the same."""
        asked = self._asked
        left_s = asked.budget_s - (time.perf_counter() - self._begun)
        if not (asked.steps or asked.epochs):
            choice = choose(list(pilots.values()), left_s, own_steps=own_steps(asked), repeats=asked.repeats)
            asked = asked.model_copy(update={"steps": choice.steps, "repeats": choice.repeats})
        cells = {cell.key: cell for cell in self._cells}
        self._takes_s = {key: pilot.takes_s(num_steps(asked, cells[key])) for key, pilot in pilots.items()}
        if not asked.repeats:
            asked = asked.model_copy(update={"repeats": choose_repeats(list(self._takes_s.values()), left_s)})
        takes_s = asked.repeats * sum(self._takes_s.values())
        if takes_s > left_s:
            steps = f"{asked.epochs} epochs" if asked.epochs else f"{asked.steps} steps"
            what = f"{asked.repeats} repeats of {len(pilots)} cells with {steps} each"
            self._observe.say(f"{what} will take about {takes_s / 60:.1f} minutes, more than is left of the budget")
        self._asked = asked
        write_atomically(self._folder.toml, asked.to_toml())

    def _mark(self) -> None:
        """Write down the cells that cannot run, and why."""
        known = {m.cell for m in self._measures}
        for key, reason in self._marks.items():
            if key not in known:
                self._keep(Measure(cell=key, repeat=0, failed=reason))

    def _measured(self, pulse: SweepPulse, steps: int, out: Path) -> Measure:
        """Run a cell once, shown before and after."""
        self._observe.pulse(pulse)
        cell, begun = pulse.cell, time.perf_counter()
        options = {**run_options(self._asked, cell), "steps": steps}
        timeout_s = self._timeout_s(pulse)
        run = measure(self._asked.task, options, out, timeout_s=timeout_s, cell=cell.key, repeat=pulse.repeat)
        took_s = time.perf_counter() - begun
        self._learn(run, took_s)
        eta_s = None if pulse.eta_s is None else max(0.0, pulse.eta_s - took_s)
        self._observe.pulse(replace(pulse, done=pulse.done + 1, eta_s=eta_s, measure=run))
        return run

    def _keep(self, run: Measure) -> None:
        self._measures.append(run)
        append_measure(self._folder, run)

    def _learn(self, run: Measure, took_s: float) -> None:
        """Count failures in a row, and note how long a run takes."""
        self._failures[run.cell] = self._failures[run.cell] + 1 if run.failed else 0
        if not run.failed and run.repeat != PILOT:
            self._takes_s[run.cell] = took_s

    def _timeout_s(self, pulse: SweepPulse) -> float:
        if pulse.repeat == PILOT:
            return PILOT_TIMEOUT_S
        known = self._takes_s.get(pulse.cell.key)
        if known is not None:
            return 60.0 + PATIENCE * known
        return PILOT_TIMEOUT_S if pulse.cell.key in self._failed_in_pilot else TIMEOUT_S

    def _left_s(self, todo: Sequence[tuple[int, Cell]]) -> float | None:
        """Return how long the rest will take, cells of which nothing is known as long as the others."""
        if not self._takes_s:
            return None
        usual = sum(self._takes_s.values()) / len(self._takes_s)
        return sum(self._takes_s.get(cell.key, usual) for _, cell in todo if self._failures[cell.key] < MAX_FAILURES)

    def _wall_before_s(self) -> float:
        """Return how long the sweep took before it was stopped, where it could say so."""
        before = read_record(self._folder)
        return before.wall_s if before else 0.0


def pilot_of(run: Measure, took_s: float) -> Pilot:
    """Tell what a run's steps took from what else it did."""
    step_s = run.step_ms / 1e3
    return Pilot(fixed_s=max(0.0, took_s - run.steps * step_s), step_s=step_s)
