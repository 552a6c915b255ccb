"""Measure whether the number of BLAS threads that a run chooses is the right one.

Usage: python benchmarks/blas_threads/run.py [--repeats N] [--seconds S] [--busy N] [--cases mlp-64 ...] [--out DIR]

The table goes to stdout, the raw records to OUT/<date>.json. The README beside this file says how it is measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from manyhands.machine import facts

HERE = Path(__file__).resolve().parent
CASES: dict[str, tuple[str, dict[str, Any], float]] = {
    "mlp-64": ("mlp", {}, 1.5e-3),
    "mlp-512": ("mlp", {"batch-size": 512}, 6e-3),
    "cnn-128": ("cnn", {}, 0.15),
    "softmax": ("softmax", {}, 0.15),
}
"""Task, options, and about what a step takes in seconds."""


def ways() -> dict[str, int]:
    """Return what is compared: the choice of a run itself, and every number of threads it chooses from."""
    numbers = [2**i for i in range(facts.cores().bit_length()) if 2**i < facts.cores()]
    return {"default": 0} | {str(n): n for n in [*numbers, facts.cores()]}


def run(case: str, threads: int, seconds: float) -> dict[str, Any]:
    """Train once in a fresh process; return the figures that matter."""
    task, options, step_s = CASES[case]
    steps = max(20, round(seconds / step_s))
    words = [f"--{name}={value}" for name, value in {**options, "steps": steps, "blas-threads": threads}.items()]
    with TemporaryDirectory() as out:
        command = [
            sys.executable,
            "-m",
            "manyhands",
            "train",
            task,
            *words,
            "--json",
            f"--out={out}",
            "--eval-every=999",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    return {
        "case": case,
        "asked": threads,
        "used": record["blas_threads"],
        "samples_per_s": record["batch_size"] / record["steady"]["step_ms"] * 1e3,
        "others": record["others"],
    }


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many cores busy, as other people's programs do."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def table(found: list[dict[str, Any]]) -> str:
    """Write medians of ratios to the default of the same repeat."""
    lines = [
        "case | threads asked | used | samples/s | default is … × as fast | others' cores",
        "--- | --- | --- | --- | --- | ---",
    ]
    for case in dict.fromkeys(one["case"] for one in found):
        own = [one for one in found if one["case"] == case]
        default = {one["repeat"]: one["samples_per_s"] for one in own if one["way"] == "default"}
        for way in dict.fromkeys(one["way"] for one in own):
            same = [one for one in own if one["way"] == way]
            ratios = sorted(default[one["repeat"]] / one["samples_per_s"] for one in same)
            rate = statistics.median(one["samples_per_s"] for one in same)
            used = "/".join(map(str, sorted({one["used"] for one in same})))
            taken = statistics.median(one["others"]["cores"] if one["others"] else 0.0 for one in same)
            spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
            lines.append(f"{case} | {way} | {used} | {rate:,.0f} | {spread} | {taken:.1f}")
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    """Run every case in every way, in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps, roughly, in each run")
    parser.add_argument("--busy", type=int, default=0, help="programs that keep a core busy meanwhile")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=HERE / "records")
    asked = parser.parse_args()
    found = []
    with busy(asked.busy):
        for repeat in range(asked.repeats):
            for case in asked.cases:
                order = list(ways().items())
                for way, threads in order if repeat % 2 == 0 else reversed(order):
                    one = {"way": way, "repeat": repeat, **run(case, threads, asked.seconds)}
                    found.append(one)
                    print(f"{repeat} {case} {way}: {one['samples_per_s']:,.0f} samples/s", file=sys.stderr)
    print(table(found))
    asked.out.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y-%m-%d-%H%M')}-{facts.cores()}cores{f'-busy{asked.busy}' if asked.busy else ''}.json"
    kept = {"hardware": facts.hardware(), "versions": facts.versions(), "busy": asked.busy, "runs": found}
    (asked.out / name).write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
