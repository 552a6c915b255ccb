"""Run a sweep: every cell several times, in turn, so that changes of the machine's speed affect all of them alike."""

import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from manyhands.errors import UserError, check
from manyhands.launch.environment import outer_world
from manyhands.machine import facts
from manyhands.machine.load import CoreMeter
from manyhands.measurement import budget
from manyhands.measurement.budget import Clock, Pilot, RunLength
from manyhands.measurement.measure import TOO_LONG, measure
from manyhands.record.files import write_atomically
from manyhands.record.owner import own
from manyhands.record.store import append_lines
from manyhands.record.sweep import Cell, Measure, Predictions, Row, SweepDir, SweepRecord
from manyhands.record.texts import count
from manyhands.scaling import checks
from manyhands.scaling.analysis.analyse import analyse
from manyhands.scaling.cells import make_cells, num_steps, own_steps, run_options
from manyhands.scaling.defaults import check_kind
from manyhands.scaling.observer import NOBODY, PILOT, Predict, SweepObserver, SweepPulse
from manyhands.scaling.request import SweepRequest, ask, spec_of_task
from manyhands.scaling.store import open_sweep, read_measures, sweep_to_resume
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing

PILOT_TIMEOUT_S = 600.0
TIMEOUT_S = 3600.0
"""Time limit of a run whose duration is not known yet."""
PATIENCE = 10.0
"""Time limit of other runs, as a multiple of the expected time; a minute is added."""
MAX_FAILURES = 2
"""Consecutive failures after which a cell is not tried again."""


class Swept(NamedTuple):
    """The folder and record of a sweep that is complete or was interrupted."""

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
    predict: Predict | None = None,
) -> Swept:
    """Do as `scale` does, and return the folder too: a resumed sweep may lie elsewhere than under `out`.

    The budget counts from when the command was given, `spent_s` ago. `predict` is called after the runs, if there are
    rows that could not be measured with a core for each rank.
    """
    clock, cores = Clock(spent_s=spent_s), CoreMeter()
    check_not_importing()
    check(outer_world() is None, "a sweep starts its own workers; run it without mpiexec, srun or torchrun")
    if resume:
        for option, value in options.items():
            check(value is None, f"a resumed sweep keeps its options; leave --{option.replace('_', '-')} out")
        name = resume if isinstance(resume, str) else ""
        folder = sweep_to_resume(out, check_kind(kind), spec_of_task(task), name)
        request = SweepRequest.from_toml(folder.toml)
        blocked = checks.blocked_cells(request)
        checks.set_clock(clock, request)
        checks.reserve_for(predict, clock, request, blocked)
    else:
        request = ask(check_kind(kind), spec_of_task(task), options)
        blocked = checks.blocked_cells(request)
        start_s = checks.set_clock(clock, request)
        checks.reserve_for(predict, clock, request, blocked)
        request = checks.within_budget(request, blocked, start_s, clock, observe)
        folder = open_sweep(out, request)
    with own(folder.path, f"sweep '{folder.path.name}'", observe.say), checks.ended_by_signals():
        checks.say_if_busy(cores, request, observe)
        running = _Sweep(folder, request, blocked, observe, clock, predict)
        try:
            running.run()
        except KeyboardInterrupt:
            return Swept(folder, running.finish("interrupted"))
        return Swept(folder, running.finish("complete"))


@final
class _Sweep:
    """A sweep in progress, new or resumed."""

    def __init__(
        self,
        folder: SweepDir,
        request: SweepRequest,
        blocked: Mapping[str, str],
        observe: SweepObserver,
        clock: Clock,
        predict: Predict | None,
    ) -> None:
        self._predict = predict
        self._folder, self._request, self._observe, self._clock = folder, request, observe, clock
        self._cells = make_cells(request)
        self._measures = read_measures(folder)
        self._blocked = blocked
        self._pilot_folder = folder.path / "pilot"
        self._warned: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._failed_in_pilot: set[str] = set()
        self._pilot_runs: list[Measure] = []
        self._takes_s: dict[str, float] = {}
        before = folder.read_or_none()
        self._notes = list(before.notes) if before else []
        self._wall_before_s = before.wall_s if before else 0.0
        for run in self._measures:
            self._learn(run, run.total_s)

    def run(self) -> None:
        """Run every cell that has not been run yet."""
        try:
            self._keep_blocked()
            if self._request.needs_pilot:
                self._choose(self._pilot())
            self._repeat()
            self._adopt_where_nothing_else_is()
        finally:
            self._remove_unnamed_folders()

    def _repeat(self) -> None:
        """Run every cell in turn, repeat by repeat; after each, reduce the repeats to those that still fit."""
        done, repeat, planned = {(run.cell, run.repeat) for run in self._measures}, 0, self._request.repeats
        while repeat < self._request.repeats:
            cells = self._round(repeat)
            for i, cell in enumerate(cells):
                if (cell.key, repeat) in done or self._failures[cell.key] >= MAX_FAILURES:
                    continue
                if not self._has_time(cell):
                    ended = f"ended the sweep in repeat {repeat + 1} of {planned}"
                    self._notes.append(f"--budget {self._request.budget} {ended}")
                    return
                repeats, num_done = self._request.repeats, repeat * len(cells) + i
                left_s = self._left_s(repeat, cells[i:])
                pulse = SweepPulse(cell, repeat, repeats, num_done, repeats * len(cells), left_s)
                self._keep(self._measured(pulse, num_steps(self._request, cell), self._folder.runs))
            repeat += 1
            fit = budget.fitting([self._takes_s.get(cell.key, 0.0) for cell in cells], self._clock.left_s)
            self._request = self._request.model_copy(update={"repeats": min(self._request.repeats, repeat + fit)})
        if repeat < planned:
            self._notes.append(f"--budget {self._request.budget} had time for {repeat} of {count(planned, 'repeat')}")

    def _remove_unnamed_folders(self) -> None:
        """Remove the pilot's folder, and those of failed runs, which no measure names."""
        shutil.rmtree(self._pilot_folder, ignore_errors=True)
        named = {run.run for run in self._measures}
        for folder in self._folder.runs.glob("*"):
            if f"{folder.parent.name}/{folder.name}" not in named:
                shutil.rmtree(folder, ignore_errors=True)

    def finish(self, status: Literal["complete", "interrupted"]) -> SweepRecord:
        """Analyse the runs, and write the record."""
        request, cells, measures = self._request, self._cells, self._measures
        analysis = analyse(request.kind, cells, measures, facts.cores())
        record = SweepRecord(
            id=self._folder.path.name,
            status=status,
            **request.model_dump(include={"kind", "task", "command", "started", "repeats", "budget"}),
            wall_s=self._wall_before_s + self._clock.elapsed_s,
            steps=num_steps(request, cells[0]),
            cells=cells,
            measures=measures,
            **analysis._asdict(),
            warnings=list(dict.fromkeys(sentence for run in measures for sentence in run.warnings)),
            hardware=facts.hardware(),
            versions=facts.versions(),
            notes=self._notes,
            predictions=self._predictions(analysis.rows) if status == "complete" else Predictions(),
        )
        self._folder.write(record)
        return record

    def _predictions(self, rows: Sequence[Row]) -> Predictions:
        """Predict the rows that failed or whose ranks had to share cores."""
        request = self._request
        missing = [row for row in rows if row.cell.role == "cell" and (row.oversubscribed or not row.repeats)]
        if self._predict is None or not missing:
            return Predictions()
        return self._predict(request.kind, request.task, missing, request.options, checks.PREDICT_S)

    def _round(self, repeat: int) -> list[Cell]:
        """Return the cells in the order of a repeat: every second one backwards, to vary which cell follows which."""
        cells = [cell for cell in self._cells if cell.key not in self._blocked]
        return cells if repeat % 2 == 0 else cells[::-1]

    def _pilot(self) -> dict[str, Pilot]:
        """Run every cell briefly, to measure how long runs take; probes come last, since a sweep can do without."""
        cells = sorted(self._round(0), key=lambda cell: cell.role == "probe")
        pilots, reasons = dict[str, Pilot](), dict(self._blocked)
        for i, cell in enumerate(cells):
            begun_s = self._clock.now()
            pulse = SweepPulse(cell, PILOT, self._request.repeats, i, len(cells), max(0.0, self._clock.left_s))
            if self._has_time(cell, at_least_s=min((p.fixed_s for p in pilots.values()), default=0.0)):
                run = self._measured(pulse, budget.steps_of_pilot(self._request.step_s), self._pilot_folder)
            else:
                run = Measure(cell=cell.key, repeat=PILOT, failed=f"left out: {self._used_up}")
            self._pilot_runs.append(run)
            if run.failed:
                reasons[cell.key] = run.failed
                self._failed_in_pilot.add(cell.key)
            else:
                pilots[cell.key] = _pilot_of(run, self._clock.now() - begun_s)
        try:
            checks.check_not_all(self._request, reasons)
        except UserError:
            shutil.rmtree(self._folder.path, ignore_errors=True)  # there is nothing to resume
            raise
        return pilots

    def _has_time(self, cell: Cell, at_least_s: float = 0.0) -> bool:
        """Return whether there is time for at least half of a run, which may be faster than the last one."""
        return self._in_free_pilot or self._clock.left_s > max(self._takes_s.get(cell.key, 0.0), at_least_s) / 2

    @property
    def _in_free_pilot(self) -> bool:
        """Whether a pilot is running that may exceed the budget."""
        return self._request.over_budget and self._request.needs_pilot

    @property
    def _used_up(self) -> str:
        return f"--budget {self._request.budget} was used up"

    def _choose(self, pilots: Mapping[str, Pilot]) -> None:
        """Choose steps and repeats, and store them, so that a resumed sweep keeps them."""
        request, left_s, timings = self._request, self._clock.left_s, list(pilots.values())
        choice: RunLength | None
        if request.steps or request.epochs:  # only the repeats are left to choose
            fit = budget.fitting(list(self._expected_s(pilots).values()), left_s)
            choice = RunLength(request.steps, min(request.repeats or budget.MAX_REPEATS, fit)) if fit else None
        else:
            choice = budget.choose(timings, left_s, own_steps=own_steps(request), repeats=request.repeats)
        if choice is None:
            steps = budget.steps_of_pilot(request.step_s)
            choice = budget.around_pilot(timings, left_s, steps=steps, repeats=request.repeats)
        self._note_shortfall(choice)
        chosen = {"epochs": 0, "steps": choice.steps} if choice.steps else {}
        self._request = request.model_copy(update={**chosen, "repeats": choice.repeats})
        self._takes_s = self._expected_s(pilots)
        if choice.counts_pilot:
            self._adopt()
        write_atomically(self._folder.toml, self._request.to_toml())

    def _expected_s(self, pilots: Mapping[str, Pilot]) -> dict[str, float]:
        """Return the expected time of a run of each cell."""
        cells = {cell.key: cell for cell in self._cells}
        return {key: pilot.takes_s(num_steps(self._request, cells[key])) for key, pilot in pilots.items()}

    def _note_shortfall(self, choice: RunLength) -> None:
        """Note where the budget allows fewer steps or repeats than requested, or than intervals need."""
        request, had = self._request, f"--budget {self._request.budget} had time for"
        repeats, noted = count(choice.repeats, "repeat"), len(self._notes)
        if choice.counts_pilot and (request.steps or request.epochs):
            whole = f"{request.steps:,}" if request.steps else f"those of {count(request.epochs, 'epoch')}"
            self._notes.append(f"{had} {choice.steps} steps of each run instead of {whole}")
        if request.repeats > choice.repeats:
            self._notes.append(f"{had} {repeats} instead of {request.repeats}")
        elif not request.repeats and choice.repeats < budget.MIN_REPEATS:
            self._notes.append(f"{had} {repeats}; intervals need {budget.MIN_REPEATS}, so there are none")
        for note in self._notes[noted:]:
            self._observe.say(note)

    def _adopt(self, without: Collection[str] = ()) -> None:
        """Count the pilot's runs as the first repeat of all cells but those of `without`."""
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
        """Count the pilots of cells that there was no time to run; other failures of a cell stand."""
        known = {run.cell for run in self._measures if not run.failed.endswith((self._used_up, TOO_LONG))}
        if left := [run for run in self._pilot_runs if run.cell not in known and not run.failed]:
            self._notes.append(f"{count(len(left), 'cell')} had time for a pilot of {left[0].steps} steps alone")
        self._adopt(without=known)

    def _keep_blocked(self) -> None:
        """Store a failed run, with the reason, for each cell that cannot run."""
        known = {run.cell for run in self._measures}
        for key, reason in self._blocked.items():
            if key not in known:
                self._keep(Measure(cell=key, repeat=0, failed=reason))

    def _measured(self, pulse: SweepPulse, steps: int, out: Path) -> Measure:
        """Run a cell once; the observer gets a pulse before and after."""
        self._observe.pulse(pulse)
        cell, begun_s = pulse.cell, self._clock.now()
        options = {**run_options(self._request, cell), "steps": steps}
        patience_s = self._patience_s(pulse)
        timeout_s = patience_s if self._in_free_pilot else min(patience_s, max(0.0, self._clock.left_s))
        run = measure(self._request.task, options, out, timeout_s=timeout_s, cell=cell.key, repeat=pulse.repeat)
        took_s = self._clock.now() - begun_s
        for sentence in run.warnings:
            if sentence not in self._warned:
                self._warned.add(sentence)
                self._observe.say(f"warning: {sentence}")
        if run.failed and timeout_s < patience_s and took_s >= timeout_s:
            run = run.model_copy(update={"failed": f"ended after {took_s:.0f} s: {self._used_up}"})
        self._learn(run, took_s)
        eta_s = None if pulse.eta_s is None else max(0.0, pulse.eta_s - took_s)
        self._observe.pulse(replace(pulse, done=pulse.done + 1, eta_s=eta_s, measure=run))
        return run

    def _keep(self, run: Measure) -> None:
        self._measures.append(run)
        append_lines(self._folder.measures, [run])

    def _learn(self, run: Measure, took_s: float) -> None:
        """Count consecutive failures, and store how long a run takes."""
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
        """Estimate the time of `cells` and the repeats after them; a cell that was not timed counts as the mean."""
        if not self._takes_s:
            return None
        usual = sum(self._takes_s.values()) / len(self._takes_s)
        rest = [*cells, *self._round(0) * (self._request.repeats - repeat - 1)]
        return sum(self._takes_s.get(cell.key, usual) for cell in rest if self._failures[cell.key] < MAX_FAILURES)


def _pilot_of(run: Measure, took_s: float) -> Pilot:
    """Separate the time of a run's steps from the rest of its time."""
    step_s = run.step_ms / 1e3
    return Pilot(fixed_s=max(0.0, took_s - run.steps * step_s), step_s=step_s)
