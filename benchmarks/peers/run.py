"""Compare manyhands with a plain PyTorch loop and with DistributedDataParallel, by ratios taken in one sitting.

Usage: python benchmarks/peers/run.py [--quick] [--repeats N] [--before SRC] [--out DIR]

The table goes to stderr, the raw records to OUT/<date>/. The README beside this file says how and what is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from manyhands.machine import facts

HERE = Path(__file__).resolve().parent
SAMPLES = {"mlp": 10_000, "cnn": 60_000}
WARM_UP = {"mlp": 100, "cnn": 5}
"""Steps at the start of each run that the medians leave out."""


@dataclass(frozen=True)
class Row:
    """One problem, given to several contenders; the first of `ours` has the target."""

    problem: str
    workers: int
    batch_size: int
    steps: int
    ours: tuple[str, ...]
    """Engines of manyhands."""
    peer: str
    """`plain` or `ddp`."""
    target: float


ROWS = [
    Row("mlp", 1, 64, 1570, ("serial",), "plain", 1.0),
    Row("cnn", 1, 128, 50, ("serial",), "plain", 1.0),
    Row("mlp", 2, 64, 1570, ("mpi", "threads"), "ddp", 3.3),
    Row("mlp", 2, 512, 600, ("mpi", "threads"), "ddp", 1.9),
    Row("cnn", 2, 128, 60, ("mpi", "threads"), "ddp", 1.2),
]
QUICK_STEPS = {"mlp": 400, "cnn": 20}
BEFORE = "before-"
"""Begins the name of a contender that runs another version of manyhands: `before-mpi`."""


@dataclass
class Run:
    """What one fresh process, or group of processes, gave."""

    contender: str
    repeat: int
    step_ms: list[float] = field(repr=False)
    loop_s: float
    samples: int
    loss: float
    """Mean over the last steps: it shows that the contender learns, and learns the same."""
    step_samples_per_s: float = 0.0
    """Global batch / median step time, without warm-up steps and short batches."""
    loop_samples_per_s: float = 0.0
    """All samples / wall time of the training loop."""
    others_cores: float = 0.0
    """Cores that others kept busy in the half second before this run: 0 on an idle machine."""


def command(contender: str, row: Row, steps: int, out: Path) -> list[str]:
    """Return the command line of one run."""
    size = ("--batch-size", str(row.batch_size), "--steps", str(steps))
    if contender == "plain":
        return [sys.executable, str(HERE / "plain_loop.py"), row.problem, *size]
    if contender == "ddp":
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(row.workers))
        return [*torchrun, str(HERE / "ddp.py"), row.problem, *size]
    return [
        *(sys.executable, "-m", "manyhands", "train", row.problem, *size),
        *("--engine", contender.removeprefix(BEFORE), "--workers", str(row.workers), "--blas-threads", "1"),
        *("--data", f"mnist:train={SAMPLES[row.problem]},test=500", "--eval-every", "1000000"),
        *("--out", str(out), "--json"),
    ]


def run(contender: str, row: Row, steps: int, repeat: int, before: Path | None) -> Run:
    """Run one contender in fresh processes and read its figures."""
    environment = dict(os.environ)
    if contender == "ddp":
        environment["OMP_NUM_THREADS"] = "1"  # what torchrun would set by itself, with a warning
    if contender.startswith(BEFORE):
        environment["PYTHONPATH"] = str(before)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        others = psutil.cpu_percent(interval=0.5) / 100 * facts.cores()
        done = subprocess.run(
            command(contender, row, steps, Path(folder)), capture_output=True, text=True, env=environment, cwd=folder
        )
        if done.returncode != 0:
            raise SystemExit(f"{contender} failed on {row}:\n{done.stderr[-3000:]}")
        values = json.loads(done.stdout.strip().splitlines()[-1])
        if contender not in ("plain", "ddp"):
            values = _of_manyhands(values, Path(folder))
    result = Run(contender, repeat, **values, others_cores=round(others, 3))
    result.step_samples_per_s = row.batch_size / statistics.median(timed(row, result.step_ms)) * 1e3
    result.loop_samples_per_s = result.samples / result.loop_s
    return result


def timed(row: Row, step_ms: list[float]) -> list[float]:
    """Leave out the warm-up, and the last batch of an epoch where it is short."""
    per_epoch = -(-SAMPLES[row.problem] // row.batch_size)
    short = SAMPLES[row.problem] % row.batch_size != 0
    warm_up = min(WARM_UP[row.problem], len(step_ms) // 4)
    return [ms for i, ms in enumerate(step_ms) if i >= warm_up and not (short and i % per_epoch == per_epoch - 1)]


def _of_manyhands(record: dict[str, Any], out: Path) -> dict[str, Any]:
    """Read the steps that a run wrote down, and its record."""
    lines = [json.loads(line) for line in (out / record["id"] / "steps.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step" in line]  # others are evaluations
    return {
        "step_ms": [step["ms"] for step in steps],
        "loop_s": record["samples"] / record["samples_per_s"],
        "samples": record["samples"],
        "loss": statistics.mean(step["loss"] for step in steps[-20:]),
    }


@dataclass
class Comparison:
    """One line of the table."""

    label: str
    target: float | None
    ours: list[Run]
    peers: list[Run]

    def ratios(self, figure: str) -> list[float]:
        """Return ours / peer's of each repeat: the two ran one after the other."""
        return [getattr(a, figure) / getattr(b, figure) for a, b in zip(self.ours, self.peers, strict=True)]

    def cells(self) -> list[str]:
        """Return the line's texts."""
        step, loop = self.ratios("step_samples_per_s"), self.ratios("loop_samples_per_s")
        middle = statistics.median(step)
        verdict = "" if self.target is None else ("yes" if middle >= self.target else "no")
        return [
            self.label,
            f"{statistics.median(r.step_samples_per_s for r in self.ours):,.0f}",
            f"{statistics.median(r.step_samples_per_s for r in self.peers):,.0f}",
            _interval(step),
            _interval(loop),
            "" if self.target is None else f"{self.target:.1f}",
            verdict,
            f"{statistics.mean(r.others_cores for r in (*self.ours, *self.peers)):.2f}",
        ]


HEADINGS = [
    "ours against peer", "ours, samples/s", "peer, samples/s", "ratio by median step", "ratio by whole loop",
    "target", "met", "others' cores",
]  # fmt: skip


def _interval(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def compare(row: Row, steps: int, repeats: int, before: Path | None) -> tuple[list[Comparison], list[Run]]:
    """Run the contenders in turn, A B C A B C ..., and line ours up with the peer, or with the version before."""
    pairs = [(engine, f"{BEFORE}{engine}" if before else row.peer) for engine in row.ours]
    runs: dict[str, list[Run]] = {name: [] for pair in pairs for name in pair}
    for repeat in range(repeats):
        for name, done in runs.items():
            done.append(run(name, row, steps, repeat, before))
            say(
                f"{row.problem} batch {row.batch_size} workers {row.workers} repeat {repeat + 1}/{repeats} {name}: "
                f"{done[-1].step_samples_per_s:,.0f} samples/s, loss {done[-1].loss:.3f}, "
                f"others' cores {done[-1].others_cores:.2f}"
            )
    lines = [
        Comparison(
            f"{row.problem}, batch {row.batch_size}, {engine} ×{row.workers} against {peer} ×{row.workers}",
            row.target if engine == row.ours[0] and not before else None,
            runs[engine],
            runs[peer],
        )
        for engine, peer in pairs
    ]
    return lines, [r for group in runs.values() for r in group]


def table(lines: list[Comparison]) -> str:
    """Return the table in Markdown, padded so that it also reads well on a terminal."""
    cells = [HEADINGS, *(line.cells() for line in lines)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADINGS))]
    padded = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    rule = "| " + " | ".join("-" * w for w in widths) + " |"
    return "\n".join([padded[0], rule, *padded[1:]]) + "\n"


def store(folder: Path, lines: list[Comparison], runs: dict[str, list[Run]], settings: dict[str, Any]) -> None:
    """Write the table, and every run with every step, so that all figures can be made again."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table(lines))
    summary = {
        "settings": settings,
        "hardware": facts.hardware(),
        "versions": facts.versions(),
        "lines": [
            {
                "label": line.label,
                "target": line.target,
                "ratios_by_median_step": line.ratios("step_samples_per_s"),
                "ratios_by_whole_loop": line.ratios("loop_samples_per_s"),
            }
            for line in lines
        ],
        "runs": {
            name: [{k: v for k, v in vars(r).items() if k != "step_ms"} for r in group] for name, group in runs.items()
        },
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    with open(folder / "steps.jsonl", "w") as f:
        for name, group in runs.items():
            for r in group:
                ms = [round(v, 3) for v in r.step_ms]
                f.write(json.dumps({"row": name, "contender": r.contender, "repeat": r.repeat, "ms": ms}) + "\n")


def revision() -> str:
    """Return the commit of the manyhands that was measured, with `-dirty` where files had been changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()


def say(text: str) -> None:
    """Tell people."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two short repeats: a smoke test, not a measurement")
    parser.add_argument("--repeats", type=int, help="repeats of each row (default 5, with --quick 2)")
    parser.add_argument("--before", type=Path, help="src folder of another version: compare with that, not with peers")
    parser.add_argument("--out", type=Path, default=HERE / "records", help="where the dated folder goes")
    args = parser.parse_args()
    repeats = args.repeats or (2 if args.quick else 5)

    begun, load = time.time(), os.getloadavg()
    say(f"load averages before: {load}; {repeats} repeats")
    lines: list[Comparison] = []
    runs: dict[str, list[Run]] = {}
    for row in ROWS:
        steps = QUICK_STEPS[row.problem] if args.quick else row.steps
        compared, done = compare(row, steps, repeats, args.before and args.before.resolve())
        lines += compared
        runs[f"{row.problem}-{row.batch_size}-{row.workers}"] = done
    settings = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun)),
        "quick": args.quick,
        "repeats": repeats,
        "load_before": load,
        "wall_s": round(time.time() - begun, 1),
        "rows": [vars(row) for row in ROWS],
        "revision": revision(),
        "before": args.before and str(args.before),
    }
    stamp = time.strftime("%Y-%m-%d-%H%M", time.localtime(begun)) + ("-quick" if args.quick else "")
    store(args.out / stamp, lines, runs, settings)
    say(f"\n{table(lines)}\nin {settings['wall_s']:.0f} s; records in {args.out / stamp}")


if __name__ == "__main__":
    main()
