"""Compare ten folds of `mlp` trained as one stack with the same folds trained one after the other.

Usage: python benchmarks/folds/run.py [--quick] [--repeats N] [--out DIR]

The table goes to stderr, the raw records to OUT/<date>/. The README beside this file says how and what is measured.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from manyhands import tasks
from manyhands.data import Split, load
from manyhands.data.order import cut, permutation
from manyhands.machine import facts
from manyhands.replica import Batch, build
from manyhands.replica.stacked import Stack, stack

HERE = Path(__file__).resolve().parent
FOLDS, ROWS, LR, SEED = 10, 64, 0.01, 0
TARGET = 1.6
CPU, DTYPE = torch.device("cpu"), torch.float32


@dataclass(frozen=True)
class Contender:
    """One way to train the folds."""

    label: str
    threads: int
    """BLAS threads; 0 for as many as there are cores."""
    parts: int = 0
    """Stacks to share the folds out to, each in a thread of its own; 0 to train fold after fold."""
    fuse: bool = True
    most: int = FOLDS
    """Models in a stack at the most; a thread trains its stacks one after the other."""
    plain: bool = False
    """Train by a loop as one writes it with PyTorch alone."""


CONTENDERS = {
    "plain": Contender("PyTorch's fold after fold, all cores", 0, plain=True),
    "turn": Contender("our fold after fold, all cores", 0),
    "stack": Contender("one stack, all cores", 0, parts=1),
    "vmap": Contender("one stack by vmap, all cores", 0, parts=1, fuse=False),
    "turn-1": Contender("fold after fold, one core", 1),
    "stack-1": Contender("one stack, one core", 1, parts=1),
    "ours": Contender("as crossval does", 1, parts=2, most=2),
    "halves": Contender("two stacks, each on its core", 1, parts=2),
}
PAIRS = [
    ("ours", "plain"),
    ("ours", "turn"),
    ("halves", "turn"),
    ("stack", "turn"),
    ("vmap", "turn"),
    ("stack-1", "turn-1"),
    ("ours", "turn-1"),
]
"""Ours against the other; the first two pairs have the target."""


class Problem:
    """The network, the data, and which rows each fold trains on, in which order."""

    def __init__(self) -> None:
        self.task = tasks.load("mlp")
        self.data = load("mnist:train=10000,test=2000")
        self.split: Split = self.data.train
        self.sample, _ = self.split.batch(slice(0, 2), DTYPE)
        n = len(self.split)
        self.rows = [
            torch.cat([torch.arange(start), torch.arange(stop, n)])
            for start, stop in (cut(n, FOLDS, i) for i in range(FOLDS))
        ]

    def module(self, fold: int) -> torch.nn.Module:
        """Make the network with the weights of this fold's seed."""
        torch.manual_seed(SEED + fold)
        return self.task.model(self.data)

    def order(self, fold: int, epoch: int) -> Tensor:
        """Return the samples of the fold in the order of the epoch."""
        rows = self.rows[fold]
        return rows[permutation(len(rows), SEED, epoch)]


def optimizer(params: list[Tensor]) -> torch.optim.Optimizer:
    """Make plain SGD."""
    return torch.optim.SGD(params, lr=LR)


def in_turn(problem: Problem, epochs: int) -> tuple[list[float], Callable[[], None]]:
    """Return what trains fold after fold, and the list its last losses go to."""
    replicas = [
        build(problem.module(i), problem.sample, "cross-entropy", optimizer, device=CPU, dtype=DTYPE)
        for i in range(FOLDS)
    ]
    losses: list[float] = []

    def train() -> None:
        for fold, replica in enumerate(replicas):
            for epoch in range(epochs):
                for indices in problem.order(fold, epoch).split(ROWS):
                    x, y = problem.split.batch(indices, DTYPE)
                    loss = replica.forward_backward(Batch(x, y), 1.0)
                    replica.apply()
            losses.append(float(loss))

    return losses, train


def by_plain_loop(problem: Problem, epochs: int) -> tuple[list[float], Callable[[], None]]:
    """Return what trains fold after fold with autograd and torch's optimiser, and the list its last losses go to."""
    models = [problem.module(i) for i in range(FOLDS)]
    losses: list[float] = []

    def train() -> None:
        for fold, model in enumerate(models):
            sgd = optimizer(list(model.parameters()))
            for epoch in range(epochs):
                for indices in problem.order(fold, epoch).split(ROWS):
                    x, y = problem.split.batch(indices, DTYPE)
                    sgd.zero_grad(set_to_none=True)
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    loss.backward()
                    sgd.step()
            losses.append(float(loss.detach()))

    return losses, train


def stacked(problem: Problem, epochs: int, contender: Contender) -> tuple[list[float], Callable[[], None]]:
    """Return what trains the folds as one stack, or as several in threads, and the list their last losses go to."""
    shares = [range(*cut(FOLDS, contender.parts, i)) for i in range(contender.parts)]
    folds = [[share[i : i + contender.most] for i in range(0, len(share), contender.most)] for share in shares]
    stacks: dict[range, Stack] = {}
    for group in itertools.chain.from_iterable(folds):
        made = stack(
            [problem.module(i) for i in group],
            problem.sample, "cross-entropy", optimizer, device=CPU, dtype=DTYPE, fuse=contender.fuse,
        )  # fmt: skip
        assert made is not None
        stacks[group] = made
    losses: list[float] = [0.0] * FOLDS

    def train_one(group: range, models: Stack) -> None:
        k = len(group)
        for epoch in range(epochs):
            orders = torch.stack([problem.order(fold, epoch) for fold in group])
            for indices in orders.split(ROWS, dim=1):
                rows = indices.shape[1]
                x, y = problem.split.batch(indices.reshape(-1), DTYPE)
                weights = x.new_full((k, rows), 1 / rows)
                last = models.forward_backward(x.view(k, rows, *x.shape[1:]), y.view(k, rows), weights)
                models.apply()
        losses[group.start : group.stop] = last.tolist()

    def train_share(groups: list[range]) -> None:
        for group in groups:
            train_one(group, stacks[group])

    def train() -> None:
        if len(folds) == 1:
            return train_share(folds[0])
        threads = [threading.Thread(target=train_share, args=(groups,)) for groups in folds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return None

    return losses, train


def run_here(name: str, epochs: int) -> dict[str, Any]:
    """Train in this process and return the figures."""
    contender = CONTENDERS[name]
    torch.set_num_threads(contender.threads or facts.cores())
    problem = Problem()

    def make(epochs: int) -> tuple[list[float], Callable[[], None]]:
        if contender.parts:
            return stacked(problem, epochs, contender)
        return by_plain_loop(problem, epochs) if contender.plain else in_turn(problem, epochs)

    make(1)[1]()  # warm-up: torch's lazy imports, thread pools, buffers
    losses, train = make(epochs)
    cpu, begun = time.process_time(), time.perf_counter()
    train()
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    samples = epochs * sum(len(rows) for rows in problem.rows)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "samples": samples, "losses": losses}


@dataclass
class Run:
    """What one fresh process gave."""

    contender: str
    repeat: int
    wall_s: float
    cpu_s: float
    samples: int
    losses: list[float]
    """Each fold's loss in the last step: the contenders learn the same."""
    others_cores: float
    """Cores that others kept busy in the half second before this run: 0 on an idle machine."""

    @property
    def samples_per_s(self) -> float:
        """All samples of all folds / wall time of the training loop."""
        return self.samples / self.wall_s


def run(name: str, epochs: int, repeat: int) -> Run:
    """Run one contender in a fresh process."""
    others = psutil.cpu_percent(interval=0.5) / 100 * (psutil.cpu_count() or 1)
    command = [sys.executable, str(HERE / "run.py"), "--one", name, "--epochs", str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return Run(name, repeat, **json.loads(done.stdout), others_cores=round(others, 3))


HEADINGS = ["ours against the other", "ours, samples/s", "other, samples/s", "ratio", "target", "met", "others' cores"]


def table(runs: dict[str, list[Run]]) -> str:
    """Return the table in Markdown: ratios within a repeat, their median, and in brackets the least and greatest."""
    cells = [HEADINGS]
    for i, (ours, other) in enumerate(PAIRS):
        found = ratios(runs, ours, other)
        middle = statistics.median(found)
        cells.append([
            f"{CONTENDERS[ours].label} against {CONTENDERS[other].label}",
            *(f"{statistics.median(r.samples_per_s for r in runs[name]):,.0f}" for name in (ours, other)),
            f"{middle:.2f} ({min(found):.2f}–{max(found):.2f})",
            *((f"{TARGET:.1f}", "yes" if middle >= TARGET else "no") if i < 2 else ("", "")),
            f"{statistics.mean(r.others_cores for r in runs[ours] + runs[other]):.2f}",
        ])  # fmt: skip
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADINGS))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "| " + " | ".join("-" * w for w in widths) + " |")
    return "\n".join(lines) + "\n"


def ratios(runs: dict[str, list[Run]], ours: str, other: str) -> list[float]:
    """Return ours / the other's samples per second in each repeat."""
    return [a.samples_per_s / b.samples_per_s for a, b in zip(runs[ours], runs[other], strict=True)]


def store(folder: Path, runs: dict[str, list[Run]], settings: dict[str, Any]) -> None:
    """Write the table and every run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table(runs))
    summary = {
        "settings": settings,
        "hardware": facts.hardware(),
        "versions": facts.versions(),
        "ratios": {f"{a} / {b}": ratios(runs, a, b) for a, b in PAIRS},
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
    parser.add_argument("--epochs", type=int, help="epochs of each run (default 3, with --quick 1)")
    parser.add_argument("--out", type=Path, default=HERE / "records", help="where the dated folder goes")
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    repeats, epochs = args.repeats or (2 if args.quick else 5), args.epochs or (1 if args.quick else 3)
    if args.one:
        print(json.dumps(run_here(args.one, epochs)))
        return

    begun, load_before = time.time(), os.getloadavg()
    folder = args.out / (time.strftime("%Y-%m-%d-%H%M", time.localtime(begun)) + ("-quick" if args.quick else ""))
    runs: dict[str, list[Run]] = {name: [] for name in CONTENDERS}
    for repeat in range(repeats):
        for name, done in runs.items():
            done.append(run(name, epochs, repeat))
            say(
                f"repeat {repeat + 1}/{repeats} {CONTENDERS[name].label}: {done[-1].samples_per_s:,.0f} samples/s, "
                f"loss {statistics.mean(done[-1].losses):.4f}, others' cores {done[-1].others_cores:.2f}"
            )
        settings = {
            "date": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun)),
            "quick": args.quick,
            "repeats": repeat + 1,
            "epochs": epochs,
            "load_before": load_before,
            "folds": FOLDS,
            "batch_size": ROWS,
            "lr": LR,
            "revision": revision(),
            "wall_s": round(time.time() - begun, 1),
        }
        store(folder, runs, settings)
    say(f"\n{table(runs)}\nin {time.time() - begun:.0f} s; records in {folder}")


if __name__ == "__main__":
    main()
