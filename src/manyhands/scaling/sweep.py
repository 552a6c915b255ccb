"""A sweep: every cell measured several times, in turn, so that what changes on the machine meets all of them alike."""

import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from manyhands.errors import UserError
from manyhands.machine import facts
from manyhands.machine.load import CoreMeter
from manyhands.measurement.budget import (
    MAX_REPEATS,
    MIN_REPEATS,
    Clock,
    Pilot,
    RunLength,
    around_pilot,
    choose,
    fitting,
    steps_of_pilot,
)
from manyhands.measurement.measure import TOO_LONG, measure
from manyhands.record import Cell, Measure, SweepDir, SweepRecord, write_atomically
from manyhands.record.owner import own
from manyhands.record.store import append_lines
from manyhands.record.texts import count
from manyhands.scaling.analysis.analyse import analyse
from manyhands.scaling.cells import make_cells, num_steps, own_steps, run_options
from manyhands.scaling.checks import (
    check_not_all,
    check_nothing_given,
    ended_by_signals,
    marks_of,
    say_if_busy,
    set_clock,
    within_budget,
)
from manyhands.scaling.defaults import check_kind
from manyhands.scaling.observer import NOBODY, PILOT, SweepObserver, SweepPulse
from manyhands.scaling.request import SweepRequest, ask, check_may_start, spec_of_task
from manyhands.scaling.store import open_sweep, read_measures, sweep_to_resume
from manyhands.tasks import Task

PILOT_TIMEOUT_S = 600.0
TIMEOUT_S = 3600.0
"""How long a run may take of which nothing is known yet."""
PATIENCE = 10.0
"""How many times as long as expected a run may take, and a minute more."""
MAX_FAILURES = 2
"""Failures in a row after which a cell is not tried again."""


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
    kind: str,
    task: str | Task,
    *,
    out: Path,
    resume: bool | str,
    observe: SweepObserver,
    options: Mapping[str, Any],
    spent_s: float = 0.0,
) -> Swept:
    """Do as `scale` does, and tell where all is kept: a sweep that is resumed may lie elsewhere than under `out`.

    The budget counts from when the command was given, which was `spent_s` ago.
    """
    clock, cores = Clock(spent_s=spent_s), CoreMeter()
    check_may_start()
    if resume:
        check_nothing_given(options)
        named = resume if isinstance(resume, str) else ""
        folder = sweep_to_resume(out, check_kind(kind), spec_of_task(task), named)
        asked = SweepRequest.from_toml(folder.toml)
        marks = marks_of(asked)
        set_clock(clock, asked)
    else:
        asked = ask(check_kind(kind), spec_of_task(task), options)
        marks = marks_of(asked)
        asked = within_budget(asked, marks, set_clock(clock, asked), clock, observe)
        folder = open_sweep(out, asked)
    with own(folder.path, f"sweep '{folder.path.name}'", observe.say), ended_by_signals():
        say_if_busy(cores, asked, observe)
        work = _Sweep(folder, asked, marks, observe, clock)
        try:
            work.run()
        except KeyboardInterrupt:
            return Swept(folder, work.finish("interrupted"))
        return Swept(folder, work.finish("complete"))


@final
class _Sweep:
    """A sweep that is going on, or goes on again."""

    def __init__(
        self, folder: SweepDir, asked: SweepRequest, marks: Mapping[str, str], observe: SweepObserver, clock: Clock
    ) -> None:
        self._folder, self._asked, self._observe, self._clock = folder, asked, observe, clock
        self._cells = make_cells(asked)
        self._measures = read_measures(folder)
        self._marks = marks
        self._warned: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._failed_in_pilot: set[str] = set()
        self._pilot_runs: list[Measure] = []
        self._takes_s: dict[str, float] = {}
        self._notes = list(before.notes) if (before := folder.read_or_none()) else []
        for known in self._measures:
            self._learn(known, known.total_s)

    def run(self) -> None:
        """Measure all that is not measured yet."""
        try:
            self._mark()
            if self._asked.needs_pilot:
                self._choose(self._pilot())
            self._repeat()
            self._adopt_where_nothing_else_is()
        finally:
            self._tidy()

    def _repeat(self) -> None:
        """Run every cell in turn, again and again; before each round, see what there is still time for."""
        done, repeat, planned = {(m.cell, m.repeat) for m in self._measures}, 0, self._asked.repeats
        while repeat < self._asked.repeats:
            cells = self._round(repeat)
            for i, cell in enumerate(cells):
                if (cell.key, repeat) in done or self._failures[cell.key] >= MAX_FAILURES:
                    continue
                if not self._has_time(cell):
                    self._notes.append(
                        f"--budget {self._asked.budget} ended the sweep in repeat {repeat + 1} of {planned}"
                    )
                    return
                at = repeat * len(cells) + i
                pulse = SweepPulse(
                    cell,
                    repeat,
                    self._asked.repeats,
                    at,
                    self._asked.repeats * len(cells),
                    self._left_s(repeat, cells[i:]),
                )
                self._keep(self._measured(pulse, num_steps(self._asked, cell), self._folder.runs))
            repeat += 1
            fit = fitting([self._takes_s.get(cell.key, 0.0) for cell in cells], self._clock.left_s)
            self._set_repeats(min(self._asked.repeats, repeat + fit))
        if repeat < planned:
            self._notes.append(f"--budget {self._asked.budget} had time for {repeat} of {count(planned, 'repeat')}")

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
            wall_s=self._wall_before_s() + self._clock.elapsed_s,
            repeats=asked.repeats,
            steps=num_steps(asked, cells[0]),
            cells=cells,
            measures=measures,
            rows=found.rows,
            fits=found.fits,
            findings=found.findings,
            warnings=list(dict.fromkeys(sentence for run in measures for sentence in run.warnings)),
            hardware=facts.hardware(),
            versions=facts.versions(),
            budget=asked.budget,
            notes=self._notes,
        )
        self._folder.write(record)
        return record

    def _round(self, repeat: int) -> list[Cell]:
        """Return the cells in this repeat's order: forth and back, so that none always comes after the same."""
        cells = [cell for cell in self._cells if cell.key not in self._marks]
        return cells if repeat % 2 == 0 else cells[::-1]

    def _pilot(self) -> dict[str, Pilot]:
        """Run every cell shortly, to tell how long others take; probes come last, since a sweep can do without."""
        cells = sorted(self._round(0), key=lambda cell: cell.role == "probe")
        pilots, reasons = dict[str, Pilot](), dict(self._marks)
        for i, cell in enumerate(cells):
            begun_s = self._clock.now()
            pulse = SweepPulse(cell, PILOT, self._asked.repeats, i, len(cells), max(0.0, self._clock.left_s))
            if self._has_time(cell, at_least_s=min((p.fixed_s for p in pilots.values()), default=0.0)):
                run = self._measured(pulse, steps_of_pilot(self._asked.step_s), self._pilot_folder)
            else:
                run = Measure(cell=cell.key, repeat=PILOT, failed=f"left out: {self._used_up}")
            self._pilot_runs.append(run)
            if run.failed:
                reasons[cell.key] = run.failed
                self._failed_in_pilot.add(cell.key)
            else:
                pilots[cell.key] = pilot_of(run, self._clock.now() - begun_s)
        self._check_some_ran(reasons)
        return pilots

    def _has_time(self, cell: Cell, at_least_s: float = 0.0) -> bool:
        """Tell whether there is time for half of a run, or more: what took long may be quicker now."""
        return self._in_free_pilot or self._clock.left_s > max(self._takes_s.get(cell.key, 0.0), at_least_s) / 2

    @property
    def _in_free_pilot(self) -> bool:
        """Whether a pilot goes on that may take longer than the budget."""
        return self._asked.over_budget and self._asked.needs_pilot

    @property
    def _used_up(self) -> str:
        return f"--budget {self._asked.budget} was used up"

    def _check_some_ran(self, reasons: Mapping[str, str]) -> None:
        try:
            check_not_all(self._asked, reasons)
        except UserError:
            shutil.rmtree(self._folder.path, ignore_errors=True)  # nothing to go on with
            raise

    def _choose(self, pilots: Mapping[str, Pilot]) -> None:
        """Choose steps and repeats, and keep them, so that a sweep that is stopped goes on with the same."""
        choice = self._given_steps(pilots) if self._asked.steps or self._asked.epochs else self._own_steps(pilots)
        if choice is None:
            steps = steps_of_pilot(self._asked.step_s)
            choice = around_pilot(list(pilots.values()), self._clock.left_s, steps=steps, repeats=self._asked.repeats)
        self._say_what_is_less(choice)
        given = {"epochs": 0, "steps": choice.steps} if choice.steps else {}
        self._asked = self._asked.model_copy(update={**given, "repeats": choice.repeats})
        cells = {cell.key: cell for cell in self._cells}
        self._takes_s = {key: pilot.takes_s(num_steps(self._asked, cells[key])) for key, pilot in pilots.items()}
        if choice.counts_pilot:
            self._adopt()
        write_atomically(self._folder.toml, self._asked.to_toml())

    def _own_steps(self, pilots: Mapping[str, Pilot]) -> RunLength | None:
        steps = own_steps(self._asked)
        return choose(list(pilots.values()), self._clock.left_s, own_steps=steps, repeats=self._asked.repeats)

    def _given_steps(self, pilots: Mapping[str, Pilot]) -> RunLength | None:
        """Choose the repeats alone; epochs stay what they are."""
        cells = {cell.key: cell for cell in self._cells}
        takes_s = [pilot.takes_s(num_steps(self._asked, cells[key])) for key, pilot in pilots.items()]
        fit = fitting(takes_s, self._clock.left_s)
        return RunLength(self._asked.steps, min(self._asked.repeats or MAX_REPEATS, fit)) if fit else None

    def _say_what_is_less(self, choice: RunLength) -> None:
        """Note what the budget had no time for, of what was asked or what statistics need."""
        asked, had = self._asked, f"--budget {self._asked.budget} had time for"
        repeats, noted = count(choice.repeats, "repeat"), len(self._notes)
        if choice.counts_pilot and (asked.steps or asked.epochs):
            whole = f"{asked.steps:,}" if asked.steps else f"those of {count(asked.epochs, 'epoch')}"
            self._notes.append(f"{had} {choice.steps} steps of each run instead of {whole}")
        if asked.repeats > choice.repeats:
            self._notes.append(f"{had} {repeats} instead of {asked.repeats}")
        elif not asked.repeats and choice.repeats < MIN_REPEATS:
            self._notes.append(f"{had} {repeats}; intervals need {MIN_REPEATS}, so there are none")
        for note in self._notes[noted:]:
            self._observe.say(note)

    def _adopt(self, without: Collection[str] = ()) -> None:
        """Count the pilot's runs as a first repeat, for all cells but some."""
        for run in self._pilot_runs:
            if run.cell in without:
                continue
            if run.run:
                folder = self._pilot_folder / Path(run.run).name
                self._folder.runs.mkdir(exist_ok=True)
                if folder.exists():
                    folder.replace(self._folder.runs / folder.name)
                run = run.model_copy(update={"run": f"{self._folder.runs.name}/{folder.name}"})
            self._keep(run.model_copy(update={"repeat": 0}))
        self._pilot_runs = []

    def _adopt_where_nothing_else_is(self) -> None:
        """Let pilots stand for cells that there was no time for; a cell whose runs failed otherwise has failed."""
        known = {run.cell for run in self._measures if not run.failed.endswith((self._used_up, TOO_LONG))}
        if left := [run for run in self._pilot_runs if run.cell not in known and not run.failed]:
            self._notes.append(f"{count(len(left), 'cell')} had time for a pilot of {left[0].steps} steps alone")
        self._adopt(without=known)

    def _mark(self) -> None:
        """Write down the cells that cannot run, and why."""
        known = {m.cell for m in self._measures}
        for key, reason in self._marks.items():
            if key not in known:
                self._keep(Measure(cell=key, repeat=0, failed=reason))

    def _measured(self, pulse: SweepPulse, steps: int, out: Path) -> Measure:
        """Run a cell once, shown before and after."""
        self._observe.pulse(pulse)
        cell, begun_s = pulse.cell, self._clock.now()
        options = {**run_options(self._asked, cell), "steps": steps}
        patience_s = self._patience_s(pulse)
        timeout_s = patience_s if self._in_free_pilot else min(patience_s, max(0.0, self._clock.left_s))
        run = measure(self._asked.task, options, out, timeout_s=timeout_s, cell=cell.key, repeat=pulse.repeat)
        took_s = self._clock.now() - begun_s
        self._warn(run)
        if run.failed and timeout_s < patience_s and took_s >= timeout_s:
            run = run.model_copy(update={"failed": f"ended after {took_s:.0f} s: {self._used_up}"})
        self._learn(run, took_s)
        eta_s = None if pulse.eta_s is None else max(0.0, pulse.eta_s - took_s)
        self._observe.pulse(replace(pulse, done=pulse.done + 1, eta_s=eta_s, measure=run))
        return run

    def _keep(self, run: Measure) -> None:
        self._measures.append(run)
        append_lines(self._folder.measures, [run])

    def _warn(self, run: Measure) -> None:
        """Say once what a run's record warns of."""
        for sentence in run.warnings:
            if sentence not in self._warned:
                self._observe.say(f"warning: {sentence}")
        self._warned.update(run.warnings)

    def _learn(self, run: Measure, took_s: float) -> None:
        """Count failures in a row, and note how long a run takes."""
        self._failures[run.cell] = self._failures[run.cell] + 1 if run.failed else 0
        if not run.failed and run.repeat != PILOT:
            self._takes_s[run.cell] = took_s

    def _patience_s(self, pulse: SweepPulse) -> float:
        if pulse.repeat == PILOT:
            return PILOT_TIMEOUT_S
        known = self._takes_s.get(pulse.cell.key)
        if known is not None:
            return 60.0 + PATIENCE * known
        return PILOT_TIMEOUT_S if pulse.cell.key in self._failed_in_pilot else TIMEOUT_S

    def _left_s(self, repeat: int, cells: Sequence[Cell]) -> float | None:
        """Return how long these cells and the rounds after them will take: of what is not known, as the others."""
        if not self._takes_s:
            return None
        usual = sum(self._takes_s.values()) / len(self._takes_s)
        rest = [*cells, *self._round(0) * (self._asked.repeats - repeat - 1)]
        return sum(self._takes_s.get(cell.key, usual) for cell in rest if self._failures[cell.key] < MAX_FAILURES)

    def _set_repeats(self, repeats: int) -> None:
        self._asked = self._asked.model_copy(update={"repeats": repeats})

    def _wall_before_s(self) -> float:
        """Return how long the sweep took before it was stopped, where it could say so."""
        before = self._folder.read_or_none()
        return before.wall_s if before else 0.0


def pilot_of(run: Measure, took_s: float) -> Pilot:
    """Tell what a run's steps took from what else it did."""
    step_s = run.step_ms / 1e3
    return Pilot(fixed_s=max(0.0, took_s - run.steps * step_s), step_s=step_s)
