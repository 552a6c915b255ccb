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
from manyhands.record.papers import ReproductionDir, ReproductionRecord, Taken
from manyhands.record.store import append_lines, writing_below
from manyhands.reproduction.base import HostFacts, Paper, Setting
from manyhands.reproduction.child import take as take_once
from manyhands.reproduction.compare import compare
from manyhands.reproduction.papers import papers_of
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

    setting: Setting
    repeat: int
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
    long ones that are run once come last."""
    often, once = ([setting for setting in settings if setting.once == is_once] for is_once in (False, True))
    repeated = [(repeat, setting) for repeat in range(repeats) for setting in often[:: -1 if repeat % 2 else 1]]
    return [*repeated, *((0, setting) for setting in once)]


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
        self._begun = time.perf_counter()
        self._failures: Counter[str] = Counter()

    def run(self, end_s: float) -> bool:
        """Run every repeat of every setting that has not succeeded yet; return whether there was time for all."""
        known = {(run.setting, run.repeat) for run in self._taken}
        runs = rounds(self._settings, self._record.repeats)
        self._announce(sum((setting.key, repeat) not in known for repeat, setting in runs))
        is_whole = True
        for i, (repeat, setting) in enumerate(runs):
            if (setting.key, repeat) in known or self._failures[setting.key] >= MAX_FAILURES:
                continue
            if time.perf_counter() + self._left_s([(repeat, setting)]) > end_s:
                is_whole = False
                continue
            self._observe.pulse(ReproductionPulse(setting, repeat, i, len(runs), self._left_s(runs[i:])))
            run = self._take(setting, self._folder, repeat)
            self._failures[setting.key] += bool(run.failed)
            self._taken.append(run)
            append_lines(self._folder.taken, [run])
            self._observe.pulse(ReproductionPulse(setting, repeat, i + 1, len(runs), self._left_s(runs[i + 1 :]), run))
        return is_whole

    def finish(self, status: Literal["complete", "interrupted"]) -> ReproductionRecord:
        """Compare the runs with the papers, and write the record."""
        readings = Readings(self._taken, quick=self._record.quick)
        record = self._record.model_copy(
            update={
                "status": status,
                "wall_s": self._record.wall_s + time.perf_counter() - self._begun,
                "papers": [compare(paper, readings, self._machine.cores) for paper in self._papers],
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
        self._observe.say(f"{runs} runs to do")

    def _left_s(self, runs: Sequence[tuple[int, Setting]]) -> float:
        """Estimate the time of `runs`: as expected, times how much longer than expected the others took."""
        expected = {setting.key: setting.about_s for setting in self._settings}
        done = [run for run in self._taken if run.setting in expected and not run.failed]
        expected_s = sum(expected[run.setting] for run in done)
        pace = sum(run.took_s for run in done) / expected_s if expected_s else 1.0
        return pace * sum(setting.about_s for _, setting in runs)
