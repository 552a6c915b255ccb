"""Compare 64 local-SGD replicas of `mlp`, 8 rows each, trained side by side with the same trained one after another.

Usage: python benchmarks/virtual/run.py [--quick] [--repeats N] [--steps N] [--patience MINUTES] [--out DIR]

The table goes to stderr, the raw records to OUT/<date>/. The README beside this file says how and what is measured.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from manyhands import sync, tasks
from manyhands.data.order import cut
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.replica import Batch
from manyhands.replica.stacked import stack
from manyhands.request import resolve
from manyhands.tasks.setup import load_data, make_replica, seeded
from manyhands.training.plan import Plan
from manyhands.virtual.courses import course_of
from manyhands.virtual.rows import Feed

HERE = Path(__file__).resolve().parent
ROWS, PERIOD, WARM_UP = 8, 8, 8
TARGET = 4.0
QUIET = 0.15
"""Cores that others may keep busy during a run that counts."""
CPU, DTYPE = torch.device("cpu"), torch.float32

Steps = Callable[[range], float]
"""Makes these steps, which begin and end with a period; returns the last one's loss over its global batch."""


@dataclass(frozen=True)
class Contender:
    """One way to train the replicas."""

    label: str
    way: Callable[["Problem"], Steps]
    threads: int
    """BLAS threads; 0 for as many as there are cores."""
    replicas: int = 64


class Problem:
    """The network, the data, and which rows each replica sees in which step."""

    def __init__(self, replicas: int, steps: int) -> None:
        self.replicas, self.task = replicas, tasks.load("mlp")
        options = {"batch_size": replicas * ROWS, "sync": f"local-sgd:period={PERIOD}", "steps": steps}
        self.config = resolve("mlp", {**options, "engine": "sim", "workers": replicas, "blas_threads": 1}, self.task)
        self.data = load_data(self.task, self.config)
        self.feed = Feed(Plan(self.config, self.data.train, 0, replicas), DTYPE)

    def module(self) -> nn.Module:
        """Make the network; all replicas begin with the same weights."""
        with seeded(self.config.seed):
            return self.task.model(self.data)

    def sgd(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Make the task's optimiser."""
        return self.task.make_optimizer(list(params), self.config.lr)

    def batches(self, replica: int, steps: range) -> list[tuple[Tensor, Tensor, float]]:
        """Gather at once what one replica sees in some steps, and what the mean over each step's rows counts in all."""
        share = self.feed.share(slice(replica, replica + 1), steps)
        x, y = self.feed.batch(share.rows)
        counts = share.weights[0].count_nonzero(1).tolist()  # padding is at the end
        weights, width = share.weights[0].sum(1).tolist(), self.feed.width
        starts = range(0, len(steps) * width, width)
        return [
            (x[0, start : start + count], y[0, start : start + count], weight)
            for start, count, weight in zip(starts, counts, weights, strict=True)
        ]


def side_by_side(problem: Problem) -> Steps:
    """Train as `train_virtually` does."""
    course = course_of(sync.make(problem.config.sync), problem.task, problem.config, problem.data, CPU)
    assert course is not None

    def make(steps: range) -> float:
        return [course.run(part)[-1] for part in course.parts(steps.start, steps.stop)][-1]

    return make


def plain(problem: Problem) -> Steps:
    """Train replica after replica by the loop that one writes with PyTorch alone."""
    models = [problem.module() for _ in range(problem.replicas)]
    optimizers = [problem.sgd(list(model.parameters())) for model in models]

    def make(steps: range) -> float:
        for first in range(steps.start, steps.stop, PERIOD):
            last = 0.0
            for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                for x, y, share in problem.batches(i, range(first, first + PERIOD)):
                    optimizer.zero_grad(set_to_none=True)
                    loss = cross_entropy(model(x), y) * share
                    (loss * problem.replicas).backward()
                    optimizer.step()
                last += float(loss.detach())
            with torch.no_grad():
                for same in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack(same).mean(0)
                    for p in same:
                        p.copy_(mean)
        return last

    return make


def in_turn(problem: Problem, threads: int = 1) -> Steps:
    """Train replica after replica by the fused replica, in one thread or in several that share them out."""
    replicas = [make_replica(problem.task, problem.config, problem.data, CPU) for _ in range(problem.replicas)]
    shares = [range(*cut(problem.replicas, threads, i)) for i in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def period(share: range, first: int) -> float:
        last = 0.0
        for i in share:
            for x, y, weight in problem.batches(i, range(first, first + PERIOD)):
                loss = replicas[i].forward_backward(Batch(x, y), weight * problem.replicas)
                replicas[i].apply()
            last += float(loss) / problem.replicas
        return last

    def make(steps: range) -> float:
        for first in range(steps.start, steps.stop, PERIOD):
            last = sum(pool.map(lambda share, first=first: period(share, first), shares))
            mean = torch.stack([replica.params for replica in replicas]).mean(0)
            for replica in replicas:
                replica.params.copy_(mean)
        return last

    return make


def one_stack(problem: Problem, fuse: bool = True) -> Steps:
    """Train all replicas as one stack, step by step."""
    modules = [problem.module() for _ in range(problem.replicas)]
    sample, _ = problem.data.train.batch(slice(0, 2), DTYPE)
    models = stack(modules, sample, "cross-entropy", problem.sgd, device=CPU, dtype=DTYPE, fuse=fuse)
    assert models is not None

    def make(steps: range) -> float:
        for step in steps:
            share = problem.feed.share(slice(0, problem.replicas), range(step, step + 1))
            x, y = problem.feed.batch(share.rows)
            losses = models.forward_backward(x, y, share.weights[:, 0] * problem.replicas)
            models.apply()
            if (step + 1) % PERIOD == 0:
                with torch.no_grad():
                    models.params.copy_(models.params.mean(0))
        return float(losses.sum()) / problem.replicas

    return make


CONTENDERS = {
    "ours": Contender("side by side", side_by_side, 1),
    "plain": Contender("PyTorch's loop, all cores", plain, 0),
    "plain-1": Contender("PyTorch's loop, one core", plain, 1),
    "turn": Contender("our replica after replica, all cores", in_turn, 0),
    "turn-1": Contender("our replica after replica, one core", in_turn, 1),
    "turn-each": Contender("our replica after replica on each core", lambda p: in_turn(p, facts.cores()), 1),
    "stack": Contender("one stack, all cores", one_stack, 0),
    "vmap": Contender("one stack by vmap, all cores", lambda p: one_stack(p, fuse=False), 0),
    "ours-256": Contender("256 side by side", side_by_side, 1, replicas=256),
}
IN_TURN = ("turn", "turn-1")
"""Our replica after replica: of these the faster one in each repeat is the one to compare with."""
PAIRS: list[tuple[str, tuple[str, ...]]] = [
    ("ours", IN_TURN),
    ("ours", ("plain", "plain-1")),
    ("ours", ("turn-each",)),
    ("ours", ("stack",)),
    ("ours", ("vmap",)),
    ("vmap", ("plain", "plain-1")),
    ("ours-256", ("ours",)),
]
"""Who is compared with whom; the first pair has the target."""


def run_here(name: str, steps: int) -> dict[str, Any]:
    """Train in this process and return the figures."""
    contender = CONTENDERS[name]
    problem = Problem(contender.replicas, WARM_UP + steps)
    threads = {"blas_threads": contender.threads or facts.cores()}
    with process_settings(problem.config.model_copy(update=threads), 1, facts.cores()):
        make = contender.way(problem)
        make(range(WARM_UP))
        cpu, begun = time.process_time(), time.perf_counter()
        loss = make(range(WARM_UP, WARM_UP + steps))
        wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    plan = problem.feed.plan
    samples = plan.samples_until(WARM_UP + steps) - plan.samples_until(WARM_UP)
    max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"wall_s": wall_s, "cpu_s": cpu_s, "samples": samples, "loss": loss, "max_rss_bytes": max_rss_bytes}


@dataclass
class Run:
    """What one fresh process gave."""

    contender: str
    repeat: int
    wall_s: float
    cpu_s: float
    samples: int
    loss: float
    """Of the last step, over all replicas: the contenders learn the same."""
    max_rss_bytes: int
    others_cores: float
    """Cores that others kept busy meanwhile: 0 on an idle machine."""

    @property
    def samples_per_s(self) -> float:
        """All samples of all replicas / wall time of the steps."""
        return self.samples / self.wall_s


def run(name: str, steps: int, repeat: int, patience_s: float) -> Run:
    """Run one contender in a fresh process; again if others used the cores meanwhile, as long as patience lasts."""
    give_up = time.monotonic() + patience_s
    while True:
        while psutil.cpu_percent(interval=1.0) / 100 * facts.cores() > QUIET and time.monotonic() < give_up:
            pass
        found, others_cores = alone(name, steps)
        if others_cores <= QUIET or time.monotonic() >= give_up:
            return Run(name, repeat, **found, others_cores=round(others_cores, 3))


def alone(name: str, steps: int) -> tuple[dict[str, Any], float]:
    """Run one contender, and return its figures and how many cores others kept busy meanwhile."""
    command = [sys.executable, str(HERE / "run.py"), "--one", name, "--steps", str(steps)]
    before, own_before, begun = busy_s(), children_s(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    others_s = busy_s() - before - (children_s() - own_before)
    return json.loads(done.stdout), max(0.0, others_s) / (time.perf_counter() - begun)


def busy_s() -> float:
    """Return the seconds that all cores have worked, or would have, had the host not taken them away."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - getattr(times, "guest", 0) - getattr(times, "guest_nice", 0))


def children_s() -> float:
    """Return the seconds that processes started from here have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


HEADINGS = ["one against the other", "one, samples/s", "other, samples/s", "ratio", "target", "met", "others' cores"]


def table(runs: dict[str, list[Run]]) -> str:
    """Return the table in Markdown: ratios within a repeat, their median, and in brackets the least and greatest."""
    cells = [HEADINGS]
    for i, (one, others) in enumerate(PAIRS):
        found = ratios(runs, one, others)
        middle = statistics.median(found)
        taken = [run for name in (one, *others) for run in runs[name]]
        cells.append([
            f"{CONTENDERS[one].label} against {' or '.join(CONTENDERS[name].label for name in others)}",
            f"{statistics.median(r.samples_per_s for r in runs[one]):,.0f}",
            f"{statistics.median(fastest(runs, others)):,.0f}",
            f"{middle:.2f} ({min(found):.2f}–{max(found):.2f})",
            *((f"{TARGET:.0f}", "yes" if middle >= TARGET else "no") if i == 0 else ("", "")),
            f"{statistics.mean(r.others_cores for r in taken):.2f}",
        ])  # fmt: skip
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADINGS))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "| " + " | ".join("-" * w for w in widths) + " |")
    most = {name: max(run.max_rss_bytes for run in runs[name]) / 2**20 for name in ("ours", "ours-256", "turn-1")}
    memory = ", ".join(f"{CONTENDERS[name].label} {mib:,.0f} MiB" for name, mib in most.items())
    return "\n".join(lines) + f"\n\nMemory of the whole process at its most: {memory}.\n"


def fastest(runs: dict[str, list[Run]], names: Sequence[str]) -> list[float]:
    """Return the samples per second of the fastest of these in each repeat."""
    return [max(r.samples_per_s for r in same) for same in zip(*(runs[name] for name in names), strict=True)]


def ratios(runs: dict[str, list[Run]], one: str, others: Sequence[str]) -> list[float]:
    """Return one's samples per second / those of the fastest of the others, in each repeat."""
    return [a.samples_per_s / b for a, b in zip(runs[one], fastest(runs, others), strict=True)]


def store(folder: Path, runs: dict[str, list[Run]], settings: dict[str, Any]) -> None:
    """Write the table and every run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table(runs))
    summary = {
        "settings": settings,
        "hardware": facts.hardware(),
        "versions": facts.versions(),
        "ratios": {f"{a} / {' or '.join(b)}": ratios(runs, a, b) for a, b in PAIRS},
        "runs": [{**vars(r), "samples_per_s": r.samples_per_s} for group in runs.values() for r in group],
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def revision() -> str:
    """Return the commit of the manyhands that was measured, with `-dirty` where files had been changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()


def say(text: str) -> None:
    """Tell people."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run all contenders in turn, A B C A B C ..."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two short repeats: a smoke test, not a measurement")
    parser.add_argument("--repeats", type=int, help="repeats of each contender (default 5, with --quick 2)")
    parser.add_argument("--steps", type=int, help="steps of each run, whole periods of 8 (default 80, with --quick 16)")
    parser.add_argument("--patience", type=float, default=0, help="minutes to wait for a quiet machine before each run")
    parser.add_argument("--out", type=Path, default=HERE / "records", help="where the dated folder goes")
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    repeats, steps = args.repeats or (2 if args.quick else 5), args.steps or (16 if args.quick else 80)
    if steps < PERIOD or steps % PERIOD:
        parser.error(f"--steps must be a multiple of {PERIOD}, got {steps}")
    if args.one:
        print(json.dumps(run_here(args.one, steps)))
        return

    begun, load_before = time.time(), os.getloadavg()
    folder = args.out / (time.strftime("%Y-%m-%d-%H%M", time.localtime(begun)) + ("-quick" if args.quick else ""))
    runs: dict[str, list[Run]] = {name: [] for name in CONTENDERS}
    for repeat in range(repeats):
        for name, done in runs.items():
            done.append(run(name, steps, repeat, 60 * args.patience))
            say(
                f"repeat {repeat + 1}/{repeats} {CONTENDERS[name].label}: {done[-1].samples_per_s:,.0f} samples/s, "
                f"loss {done[-1].loss:.5f}, {done[-1].max_rss_bytes / 2**20:,.0f} MiB, "
                f"others' cores {done[-1].others_cores:.2f}"
            )
        settings = {
            "date": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun)),
            "quick": args.quick,
            "repeats": repeat + 1,
            "steps": steps,
            "load_before": load_before,
            "rows": ROWS,
            "period": PERIOD,
            "revision": revision(),
            "wall_s": round(time.time() - begun, 1),
        }
        store(folder, runs, settings)
    say(f"\n{table(runs)}\nin {time.time() - begun:.0f} s; records in {folder}")


if __name__ == "__main__":
    main()
