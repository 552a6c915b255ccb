"""Run every setting of the papers several times, in turn, and compare the figures with the published ones."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from manyhands.errors import check
from manyhands.launch.environment import outer_world
from manyhands.machine import facts
from manyhands.record.owner import own
from manyhands.record.papers import Prediction, ReproductionDir, ReproductionRecord, Taken
from manyhands.record.store import append_lines, writing_below
from manyhands.reproduction.base import HostFacts, Paper, Setting
from manyhands.reproduction.child import take as take_once
from manyhands.reproduction.compare import compare
from manyhands.reproduction.papers import papers_of
from manyhands.reproduction.predict import calibrations, needed, not_simulated, predict
from manyhands.reproduction.readings import Readings
from manyhands.reproduction.store import read_taken, to_resume
from manyhands.reproduction.verdict import RULES

REPEATS, QUICK_REPEATS = 3, 1
MAX_FAILURES = 2
"""Failures after which a setting is not tried again."""

Take = Callable[[Setting, ReproductionDir, int], Taken]


@dataclass(frozen=True)
class ReproductionPulse:
    """The progress of a reproduction, for the progress bar."""

    name: str
    """Of the setting or the calibration."""
    done: int
    total: int
    left_s: float
    taken: Taken | None = None
    """The run that has just ended; None when one starts."""


@dataclass(frozen=True)
class Observer:
    """Callbacks for progress and for messages to the user."""

    pulse: Callable[[ReproductionPulse], None] = lambda pulse: None
    say: Callable[[str], None] = lambda sentence: None


NOBODY = Observer()


def this_machine() -> HostFacts:
    """Return the hardware of this machine."""
    hardware = facts.hardware()
    return HostFacts(hardware["cores"], len(hardware["gpus"]), ray=bool(facts.version("ray")))


def reproduce(
    number: str,
    *,
    quick: bool = False,
    repeats: int | None = None,
    out: str | Path = "reproductions",
    resume: bool = False,
    budget_s: float = math.inf,
    observe: Observer = NOBODY,
    take: Take = take_once,
) -> ReproductionRecord:
    """Reproduce the tables of the paper with this number, or of `all`, beside the published figures.

    Runs that are not expected to end within `budget_s` are left for a resumed reproduction.

    >>> record = reproduce("001", quick=True)  # doctest: +SKIP
    """
    machine = this_machine()
    papers = papers_of(number, machine)
    check(outer_world() is None, "a reproduction starts its own workers; run it without mpiexec, srun or torchrun")
    check(repeats is None or repeats >= 1, f"repeats must be at least 1, got {repeats}")
    check(budget_s > 0, f"budget must be more than 0 s, got {budget_s:g}")
    if resume:
        check(repeats is None, "a resumed reproduction keeps its repeats; leave --repeats out")
        folder = to_resume(Path(out), number, quick=quick)
    else:
        folder = _begin(Path(out), number, quick, repeats)
    with own(folder.path, f"reproduction '{folder.path.name}'", observe.say):
        reproduction = _Reproduction(folder, papers, machine, observe, take)
        try:
            is_whole = reproduction.run(time.perf_counter() + budget_s)
        except KeyboardInterrupt:
            is_whole = False
        return reproduction.finish("complete" if is_whole else "interrupted")


def plan(papers: Iterable[Paper], *, quick: bool) -> list[Setting]:
    """Return all settings to run, without duplicates; with `quick`, those that are run instead."""
    settings = (setting for paper in papers for setting in paper.settings())
    chosen = (setting.shortened() if quick else setting for setting in settings)
    return list({setting.key: setting for setting in chosen if setting}.values())


def rounds(settings: Sequence[Setting], repeats: int) -> list[tuple[int, Setting]]:
    """Return all runs in their order: every second repeat goes backwards, so that none always follows the same, and
    long ones that are run once come after the first repeat of the others."""
    first = sorted(settings, key=lambda setting: setting.once)
    often = [setting for setting in settings if not setting.once]
    again = [(repeat, setting) for repeat in range(1, repeats) for setting in often[:: -1 if repeat % 2 else 1]]
    return [*((0, setting) for setting in first), *again]


def about_s(papers: Iterable[Paper], *, quick: bool, repeats: int) -> float:
    """Return the estimated time of all runs on 2 cores."""
    return sum(setting.about_s for _, setting in rounds(plan(papers, quick=quick), repeats))


def _begin(out: Path, number: str, quick: bool, repeats: int | None) -> ReproductionDir:
    """Create the folder of a new reproduction with a record of no runs; raise UserError where it cannot be written."""
    usual = QUICK_REPEATS if quick else REPEATS
    options = (["--quick"] if quick else []) + ([f"--repeats {repeats}"] if repeats not in (None, usual) else [])
    folder = ReproductionDir.new(out, number, *(["quick"] if quick else []))
    record = ReproductionRecord(
        id=folder.path.name,
        status="interrupted",
        asked=number,
        quick=quick,
        repeats=repeats or usual,
        command=" ".join(["manyhands", "reproduce", number, *options]),
        started=time.strftime("%Y-%m-%d %H:%M:%S"),
        wall_s=0.0,
        papers=[],
        rules=list(RULES),
        taken=[],
        hardware=facts.hardware(),
        versions=facts.versions(),
    )
    with writing_below(out):
        folder.write(record)
    return folder


@final
class _Reproduction:
    """A reproduction in progress, new or resumed."""

    def __init__(
        self, folder: ReproductionDir, papers: list[Paper], machine: HostFacts, observe: Observer, take: Take
    ) -> None:
        self._folder, self._papers, self._machine, self._observe, self._take = folder, papers, machine, observe, take
        self._record = folder.read()
        self._settings = plan(papers, quick=self._record.quick)
        self._taken = read_taken(folder)
        self._predictions = self._record.predictions
        self._begun = time.perf_counter()
        self._failures: Counter[str] = Counter()

    def run(self, end_s: float) -> bool:
        """Predict, then run every repeat of every setting, but what has succeeded before; return whether all is done.

        What would take longer than until `end_s` is left out.
        """
        known = {(run.setting, run.repeat) for run in self._taken}
        runs = rounds(self._settings, self._record.repeats)
        self._announce(sum((setting.key, repeat) not in known for repeat, setting in runs))
        is_whole = self._predict(end_s, runs)
        for i, (repeat, setting) in enumerate(runs):
            if (setting.key, repeat) in known or self._failures[setting.key] >= MAX_FAILURES:
                continue
            if time.perf_counter() + self._left_s([(repeat, setting)]) > end_s:
                is_whole = False
                continue
            self._observe.pulse(ReproductionPulse(setting.name, i, len(runs), self._left_s(runs[i:])))
            run = self._take(setting, self._folder, repeat)
            self._failures[setting.key] += bool(run.failed)
            self._taken.append(run)
            append_lines(self._folder.taken, [run])
            left_s = self._left_s(runs[i + 1 :])
            self._observe.pulse(ReproductionPulse(setting.name, i + 1, len(runs), left_s, run))
        return is_whole

    def _predict(self, end_s: float, runs: Sequence[tuple[int, Setting]]) -> bool:
        """Predict settings with more workers than cores; return whether there was time for all calibrations."""
        if self._record.quick:
            return True
        known = {prediction.setting for prediction in self._predictions if not prediction.failed}
        needs = [need for need in needed(self._papers, self._machine.cores) if need.setting.key not in known]
        self._keep_predictions(list(not_simulated(needs)))
        is_whole = True
        tasks = calibrations(needs)
        for i, task in enumerate(tasks):
            if time.perf_counter() + task.about_s > end_s:
                is_whole = False
                continue
            left_s = self._left_s(runs) + sum(other.about_s for other in tasks[i:])
            self._observe.pulse(ReproductionPulse(task.name, 0, len(runs), left_s))
            newer = predict(task, needs, self._folder.calibration, self._observe.say)
            self._keep_predictions(newer)
            failed = next((f": {prediction.failed}" for prediction in newer if prediction.failed), "")
            self._observe.say(f"{task.name}: {sum(not one.failed for one in newer)} settings predicted{failed}")
        return is_whole

    def _keep_predictions(self, newer: list[Prediction]) -> None:
        """Add predictions to those of before, and write them at once: a calibration takes a minute."""
        again = {prediction.setting for prediction in newer}
        self._predictions = [kept for kept in self._predictions if kept.setting not in again] + newer
        self._record = self._record.model_copy(update={"predictions": self._predictions})
        self._folder.write(self._record)

    def finish(self, status: Literal["complete", "interrupted"]) -> ReproductionRecord:
        """Compare the runs with the papers, and write the record."""
        readings = Readings(self._taken, quick=self._record.quick)
        record = self._record.model_copy(
            update={
                "status": status,
                "wall_s": self._record.wall_s + time.perf_counter() - self._begun,
                "papers": [compare(paper, readings, self._machine.cores, self._predictions) for paper in self._papers],
                "taken": self._taken,
            }
        )
        self._folder.write(record)
        return record

    def _announce(self, runs: int) -> None:
        """Say what will be run, and the estimated time."""
        quick, repeats = self._record.quick, self._record.repeats
        for paper in self._papers:
            minutes = about_s([paper], quick=quick, repeats=repeats) / 60
            many = len(plan([paper], quick=quick))
            self._observe.say(f"paper {paper.number}: {many} settings, about {minutes:.0f} min on 2 cores")
        if quick:
            self._observe.say(
                "--quick: fewer steps, one repeat; rows that it leaves out, or cuts the data of, are not judged"
            )
        else:
            self._announce_predictions()
        self._observe.say(f"{runs} runs to do")

    def _announce_predictions(self) -> None:
        needs = needed(self._papers, self._machine.cores)
        if tasks := calibrations(needs):
            minutes = sum(task.about_s for task in tasks) / 60
            self._observe.say(
                f"{len(needs)} settings have more workers than the {self._machine.cores} cores here and are predicted, "
                f"too, from calibrations of {len(tasks)} tasks, about {minutes:.0f} min where there are none yet"
            )

    def _left_s(self, runs: Sequence[tuple[int, Setting]]) -> float:
        """Estimate the time of `runs`: as expected, times how much longer than expected the others took."""
        expected = {setting.key: setting.about_s for setting in self._settings}
        done = [run for run in self._taken if run.setting in expected and not run.failed]
        expected_s = sum(expected[run.setting] for run in done)
        pace = sum(run.took_s for run in done) / expected_s if expected_s else 1.0
        return pace * sum(setting.about_s for _, setting in runs)
