"""Measure what papers' tables need, each setting several times, in turn, and hold it against what they published."""

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
from manyhands.record.store import append_lines
from manyhands.reproduction.base import HostFacts, Paper, Setting
from manyhands.reproduction.child import take as take_once
from manyhands.reproduction.compare import compare
from manyhands.reproduction.papers import papers_of
from manyhands.reproduction.readings import Readings
from manyhands.reproduction.store import open_folder, read_taken, to_resume
from manyhands.reproduction.verdict import RULES

REPEATS, QUICK_REPEATS = 3, 1
MAX_FAILURES = 2
"""Failures after which a setting is not tried again."""

Take = Callable[[Setting, ReproductionDir, int], Taken]


@dataclass(frozen=True)
class ReproductionPulse:
    """How a reproduction is doing: what the progress bar shows."""

    setting: Setting
    repeat: int
    done: int
    total: int
    left_s: float
    taken: Taken | None = None
    """What has just been measured; None when a run starts."""


@dataclass(frozen=True)
class Observer:
    """Who is shown how it is doing, and told what they should know."""

    pulse: Callable[[ReproductionPulse], None] = lambda pulse: None
    say: Callable[[str], None] = lambda sentence: None


NOBODY = Observer()


def this_machine() -> HostFacts:
    """Return what this machine has."""
    hardware = facts.hardware()
    return HostFacts(hardware["cores"], len(hardware["gpus"]))


def reproduce(
    asked: str,
    *,
    quick: bool = False,
    repeats: int | None = None,
    out: str | Path = "reproductions",
    resume: bool = False,
    observe: Observer = NOBODY,
    take: Take = take_once,
) -> ReproductionRecord:
    """Rebuild the tables of a paper, by its number, or of `all`, beside its published figures.

    >>> record = reproduce("001", quick=True)  # doctest: +SKIP
    """
    machine = this_machine()
    papers = papers_of(asked, machine)
    check(outer_world() is None, "a reproduction starts its own workers; run it without mpiexec, srun or torchrun")
    check(repeats is None or repeats >= 1, f"repeats must be at least 1, got {repeats}")
    if resume:
        check(repeats is None, "a resumed reproduction keeps its repeats; leave --repeats out")
        folder = to_resume(Path(out), asked, quick=quick)
    else:
        folder = open_folder(Path(out), _begin(asked, quick, repeats or (QUICK_REPEATS if quick else REPEATS)))
    with own(folder.path, f"reproduction '{folder.path.name}'", observe.say):
        going = _Reproduction(folder, papers, machine, observe, take)
        try:
            going.run()
        except KeyboardInterrupt:
            return going.finish("interrupted")
        return going.finish("complete")


def plan(papers: Iterable[Paper], *, quick: bool) -> list[Setting]:
    """Return everything to run, each setting once; with `quick`, what is run instead."""
    everything = {key: setting for paper in papers for key, setting in paper.settings().items()}
    if not quick:
        return list(everything.values())
    short = (setting.shortened() for setting in everything.values())
    return list({setting.key: setting for setting in short if setting}.values())


def rounds(settings: Sequence[Setting], repeats: int) -> list[tuple[int, Setting]]:
    """Return all runs in their order: forth and back, so that none always comes after the same."""
    runs: list[tuple[int, Setting]] = []
    for repeat in range(repeats):
        here = [setting for setting in settings if repeat == 0 or not setting.once]
        runs += [(repeat, setting) for setting in (here if repeat % 2 == 0 else here[::-1])]
    return runs


def about_s(papers: Iterable[Paper], *, quick: bool, repeats: int) -> float:
    """Return about how long all runs take on 2 cores."""
    return sum(setting.about_s for _, setting in rounds(plan(papers, quick=quick), repeats))


def _begin(asked: str, quick: bool, repeats: int) -> ReproductionRecord:
    words = ["manyhands", "reproduce", asked, *(["--quick"] if quick else [])]
    usual = QUICK_REPEATS if quick else REPEATS
    return ReproductionRecord(
        id="",
        status="interrupted",
        asked=asked,
        quick=quick,
        repeats=repeats,
        command=" ".join([*words, *([f"--repeats {repeats}"] if repeats != usual else [])]),
        started=time.strftime("%Y-%m-%d %H:%M:%S"),
        wall_s=0.0,
        papers=[],
        rules=list(RULES),
        taken=[],
        hardware=facts.hardware(),
        versions=facts.versions(),
    )


@final
class _Reproduction:
    """A reproduction that is going on, or goes on again."""

    def __init__(
        self, folder: ReproductionDir, papers: list[Paper], machine: HostFacts, observe: Observer, take: Take
    ) -> None:
        self._folder, self._papers, self._machine, self._observe, self._take = folder, papers, machine, observe, take
        self._record = folder.read()
        self._taken = read_taken(folder)
        self._begun = time.perf_counter()
        self._failures: Counter[str] = Counter()

    def run(self) -> None:
        """Measure all that is not measured yet."""
        known = {(one.setting, one.repeat) for one in self._taken}
        runs = rounds(plan(self._papers, quick=self._record.quick), self._record.repeats)
        self._announce(len([run for run in runs if (run[1].key, run[0]) not in known]))
        for i, (repeat, setting) in enumerate(runs):
            if (setting.key, repeat) in known or self._failures[setting.key] >= MAX_FAILURES:
                continue
            self._observe.pulse(ReproductionPulse(setting, repeat, i, len(runs), self._left_s(runs[i:])))
            one = self._take(setting, self._folder, repeat)
            self._failures[setting.key] += bool(one.failed)
            self._taken.append(one)
            append_lines(self._folder.taken, [one])
            self._observe.pulse(ReproductionPulse(setting, repeat, i + 1, len(runs), self._left_s(runs[i + 1 :]), one))

    def finish(self, status: Literal["complete", "interrupted"]) -> ReproductionRecord:
        """Hold everything against the papers, and write it down."""
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
        """Say beforehand what will be run, and about how long it takes."""
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
        """Return how long the rest will take: as expected, times how much longer than expected the others took."""
        by_key = {setting.key: setting for setting in plan(self._papers, quick=self._record.quick)}
        done = [one for one in self._taken if one.setting in by_key and not one.failed]
        expected_s = sum(by_key[one.setting].about_s for one in done)
        pace = sum(one.took_s for one in done) / expected_s if expected_s else 1.0
        return pace * sum(setting.about_s for _, setting in runs)
