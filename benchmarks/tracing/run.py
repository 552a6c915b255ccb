"""Measure what counting, a timeline and a profile add to a step, and whether a profile tells the truth.

Usage: python benchmarks/tracing/run.py [--quick] [--repeats N] [--out DIR]

The tables go to stderr, the raw records to OUT/<date>/. The README beside this file says how and what is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from accuracy import PIECES, compare
from ways import BareComm, BareSpans, run

from manyhands.comm.self_ import SelfComm
from manyhands.comm.spans import Spans
from manyhands.comm.traced import TracedComm
from manyhands.launch.in_process import LocalWatch
from manyhands.machine import facts
from manyhands.profiling.lens import Lens, Pace

HERE = Path(__file__).resolve().parent
TARGET = 1.02
WAYS = ("plain", "bare", "traced", "profiled")


@dataclass(frozen=True)
class Case:
    """A run to look at."""

    label: str
    task: str
    steps: int
    quick_steps: int
    options: dict[str, Any]


CASES = {
    "mlp": Case("mlp, batch 64, serial ×1", "mlp", 4000, 400, {"blas_threads": 1}),
    "threads": Case("mlp, batch 512, threads ×2", "mlp", 1000, 100,
                    {"engine": "threads", "workers": 2, "batch_size": 512}),
    "mpi": Case("mlp, batch 512, mpi ×2", "mlp", 1000, 100, {"engine": "mpi", "workers": 2, "batch_size": 512}),
    "cnn": Case("cnn, batch 128, serial ×1", "cnn", 150, 40, {"blas_threads": 1}),
}  # fmt: skip


@dataclass
class Run:
    """What one fresh process gave."""

    case: str
    way: str
    repeat: int
    mean_ms: float
    median_ms: float
    others_cores: float
    """Cores that others kept busy in the half second before this run: 0 on an idle machine."""
    cost_pct: float | None = None
    """What the profile says itself that it cost, from the least disturbed steps; for the rank where it is most."""
    calls: float | None = None
    """Calls of the comm in a step."""


def run_apart(case: str, way: str, repeat: int, *, quick: bool) -> Run:
    """Run a case in a fresh process."""
    others = psutil.cpu_percent(interval=0.5) / 100 * facts.cores()
    command = [sys.executable, str(HERE / "run.py"), "--one", case, way, *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{case} {way} failed:\n{done.stderr[-3000:]}")
    return Run(case, way, repeat, **json.loads(done.stdout.splitlines()[-1]), others_cores=round(others, 3))


def seconds_of(call: Callable[[], object], times: int = 2000, tries: int = 60) -> float:
    """Return the seconds of a call in a tight loop, of the least disturbed of several tries."""

    def attempt() -> float:
        begun = time.perf_counter()
        for _ in range(times):
            call()
        return time.perf_counter() - begun

    return min(attempt() for _ in range(tries)) / times


def costs_of_calls() -> dict[str, float]:
    """Return the microseconds that each of our wrappers adds to what it wraps."""
    t = torch.zeros(1)

    def comm_us(comm: TracedComm) -> float:
        def call() -> None:
            comm.all_reduce_(t)
            comm.collective_s.clear()
            comm.spans.kept.clear()

        return 1e6 * seconds_of(call)

    def loop_us(spans: Spans) -> float:
        def call() -> None:
            spans.at(7)
            spans.add("forward and backward", "compute", 1.0, 2.0)
            spans.add("agree and update", "update", 2.0, 3.0)
            spans.kept.clear()

        return 1e6 * seconds_of(call)

    def tracing() -> Spans:
        spans = Spans(10)
        spans.open(0)
        spans.at(7)
        return spans

    class TwoRanks(SelfComm):  # type: ignore[misc]
        size = 2

    bare_us, bare_loop_us = comm_us(BareComm(TwoRanks())), loop_us(BareSpans())
    lens = Lens(_Nobody(), Pace(1 << 60, 3), within=costs_of_calls.__code__)
    return {
        "counting, a call of the comm": comm_us(TracedComm(TwoRanks())) - bare_us,
        "counting, a step": loop_us(Spans()) - bare_loop_us,
        "timeline, a call of the comm": comm_us(TracedComm(TwoRanks(), tracing())) - bare_us,
        "timeline, a step": loop_us(tracing()) - bare_loop_us,
        "profile, a step that is not timed": 1e6 * (seconds_of(lambda: lens.at(0)) - seconds_of(lambda: _NOBODY.at(0))),
    }


class _Nobody(LocalWatch):  # type: ignore[misc]
    """A watch that nobody looks at."""

    def __init__(self) -> None:
        self.step = -1


_NOBODY = _Nobody()


def ratios(runs: list[Run], case: str, over: str, under: str) -> list[float]:
    """Return the ratio of two ways' mean step times in each repeat."""
    by = {(r.way, r.repeat): r.mean_ms for r in runs if r.case == case}
    repeats = sorted({r.repeat for r in runs if r.case == case})
    return [by[over, i] / by[under, i] for i in repeats]


COMPARED = [("counting", "plain", "bare"), ("timeline", "traced", "bare"), ("profile", "profiled", "plain")]
HEADINGS = ["case", "what", "step, ms", "by calls", "whole runs", "aim", "met", "others' cores"]


def rows(runs: list[Run], calls_us: dict[str, float]) -> list[list[str]]:
    """Return the table's rows: what each thing adds, told from the calls it makes and from whole runs."""
    found = []
    for name, case in CASES.items():
        own = [r for r in runs if r.case == name]
        if not own:
            continue
        step_ms = statistics.median(r.median_ms for r in own if r.way == "bare")
        for what, over, under in COMPARED:
            whole = ratios(runs, name, over, under)
            told = by_calls(own, calls_us, what, step_ms)
            others = statistics.mean(r.others_cores for r in own if r.way in (over, under))
            found.append([
                case.label, what, f"{step_ms:.3f}", f"{told:.4f}",
                f"{statistics.median(whole):.3f} ({min(whole):.3f}–{max(whole):.3f})",
                f"{TARGET:.2f}", "yes" if told < TARGET else "no", f"{others:.2f}",
            ])  # fmt: skip
    return found


def by_calls(own: list[Run], calls_us: dict[str, float], what: str, step_ms: float) -> float:
    """Return a step's time with this thing over its time without, from what its calls cost."""
    if what == "profile":
        said = statistics.median(r.cost_pct for r in own if r.cost_pct is not None)
        return 1 + said / 100 + calls_us["profile, a step that is not timed"] / (1e3 * step_ms)
    num_calls = statistics.median(r.calls for r in own if r.calls is not None)
    us = num_calls * calls_us[f"{what}, a call of the comm"] + calls_us[f"{what}, a step"]
    return 1 + us / (1e3 * step_ms)


def markdown(headings: list[str], cells: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, *cells]
    widths = [max(len(row[i]) for row in lines) for i in range(len(headings))]
    text = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in lines]
    text.insert(1, "| " + " | ".join("-" * w for w in widths) + " |")
    return "\n".join(text) + "\n"


def tables(runs: list[Run], calls_us: dict[str, float], shares: dict[str, dict[str, float]]) -> str:
    """Return all tables."""
    costs = [[name, f"{us:.2f}"] for name, us in calls_us.items()]
    truth = [[name, *(f"{100 * shares[way][name]:.1f}" for way in shares)] for name in PIECES]
    return "\n".join([
        markdown(HEADINGS, rows(runs, calls_us)),
        markdown(["what is added", "µs"], costs),
        markdown(["piece of a made-up step", *(f"{way}, %" for way in shares)], truth),
    ])  # fmt: skip


def revision() -> str:
    """Return the commit of the manyhands that was measured, with `-dirty` where files had been changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()


def say(text: str) -> None:
    """Tell people."""
    print(text, file=sys.stderr, flush=True)


def store(
    folder: Path,
    runs: list[Run],
    calls_us: dict[str, float],
    shares: Any,
    settings: dict[str, Any],
    cases: list[str],
) -> None:
    """Write the tables and every run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(tables(runs, calls_us, shares))
    summary = {
        "settings": settings,
        "hardware": facts.hardware(),
        "versions": facts.versions(),
        "calls_us": calls_us,
        "shares": shares,
        "ratios": {
            f"{case}: {over} / {under}": ratios(runs, case, over, under)
            for case in cases
            for _, over, under in COMPARED
        },
        "runs": [vars(r) for r in runs],
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def main() -> None:
    """Run all ways of a case in turn, A B C A B C ..."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two short repeats: a smoke test, not a measurement")
    parser.add_argument("--repeats", type=int, help="repeats of each way (default 7, with --quick 2)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="which cases (default all)")
    parser.add_argument("--out", type=Path, default=HERE / "records", help="where the dated folder goes")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        case = CASES[args.one[0]]
        steps = case.quick_steps if args.quick else case.steps
        print(json.dumps(run(args.one[1], case.task, steps, case.options)))
        return

    begun, load_before = time.time(), os.getloadavg()
    repeats = args.repeats or (2 if args.quick else 7)
    folder = args.out / (time.strftime("%Y-%m-%d-%H%M", time.localtime(begun)) + ("-quick" if args.quick else ""))
    calls_us = costs_of_calls()
    shares = compare(1000 if args.quick else 8000)
    runs: list[Run] = []
    for repeat in range(repeats):
        for case in args.cases:
            for way in WAYS if repeat % 2 else reversed(WAYS):  # what comes first meets another machine
                runs.append(run_apart(case, way, repeat, quick=args.quick))
                say(f"repeat {repeat + 1}/{repeats} {CASES[case].label} {way}: {runs[-1].mean_ms:.3f} ms a step")
        settings = {
            "date": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun)),
            "quick": args.quick,
            "repeats": repeat + 1,
            "load_before": load_before,
            "revision": revision(),
            "wall_s": round(time.time() - begun, 1),
        }
        store(folder, runs, calls_us, shares, settings, args.cases)
    say(f"\n{tables(runs, calls_us, shares)}\nin {time.time() - begun:.0f} s; records in {folder}")


if __name__ == "__main__":
    main()
