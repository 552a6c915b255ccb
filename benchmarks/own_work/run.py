"""Compare the trainings of `examples/own_work` with the same under DDP and Accelerate: two processes, one thread each.

Usage: python benchmarks/own_work/run.py [--repeats N] [--only NAME] [--out DIR]
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
from pathlib import Path

from manyhands.machine import facts

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples" / "own_work"
STEPS = {
    "regression": 600,
    "multilabel": 600,
    "sequences": 200,
    "characters": 60,
    "fine_tuning": 400,
    "resnet_images": 12,
}
WARM_UP = 1 / 4
"""Share of the steps that the medians leave out."""
CONTENDERS = ("manyhands", "ddp", "accelerate")


def command(contender: str, name: str, out: Path) -> list[str]:
    """Return the command line of one run."""
    if contender != "manyhands":
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        return [*torchrun, str(HERE / "peer.py"), name, contender, str(STEPS[name])]
    return [
        *(
            sys.executable,
            "-m",
            "manyhands",
            "train",
            f"{EXAMPLES / name}.py:task",
            "--engine",
            "mpi",
            "--workers",
            "2",
        ),
        *("--blas-threads", "1", "--steps", str(STEPS[name]), "--eval-every", "1000000", "--out", str(out), "--json"),
    ]


def run(contender: str, name: str) -> dict[str, object]:
    """Run one contender in fresh processes; return its times, without the warm-up."""
    with tempfile.TemporaryDirectory(prefix="own-work-") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
        done = subprocess.run(
            command(contender, name, Path(folder)), capture_output=True, text=True, env=environment, cwd=folder
        )
        if done.returncode:
            raise SystemExit(f"{contender} failed on {name}:\n{done.stderr[-3000:]}")
        values = json.loads(done.stdout.strip().splitlines()[-1])
        if contender == "manyhands":
            lines = map(json.loads, (Path(folder) / values["id"] / "steps.jsonl").read_text().splitlines())
            steps = [line for line in lines if "loss" in line]
            losses = [line["loss"] for line in steps[-10:]]
            loop_s = values["samples"] / values["samples_per_s"]
            values = {"step_ms": [line["ms"] for line in steps], "loop_s": loop_s, "loss": statistics.mean(losses)}
    values["median_ms"] = statistics.median(values["step_ms"][int(WARM_UP * STEPS[name]) :])
    return {"contender": contender, "problem": name, **values}


def spread(values: list[float]) -> str:
    """Return the median with the least and the greatest value."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    """Run all contenders in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=STEPS, action="append")
    parser.add_argument("--out", type=Path, default=HERE / "records")
    arguments = parser.parse_args()
    runs, rows = [], []
    for name in arguments.only or STEPS:
        for repeat in range(arguments.repeats):
            for contender in CONTENDERS:
                runs.append({**run(contender, name), "repeat": repeat})
                last = runs[-1]
                print(f"{name} {contender}: {last['median_ms']:.2f} ms, loss {last['loss']:.4f}", file=sys.stderr)
        of = {c: [r for r in runs if r["problem"] == name and r["contender"] == c] for c in CONTENDERS}
        for peer in CONTENDERS[1:]:
            pairs = list(zip(of["manyhands"], of[peer], strict=True))
            by_step = [theirs["median_ms"] / ours["median_ms"] for ours, theirs in pairs]
            by_loop = [theirs["loop_s"] / ours["loop_s"] for ours, theirs in pairs]
            rows.append(f"| {name} | {peer} | {spread(by_step)} | {spread(by_loop)} |")
    table = "\n".join(["| training | peer | by median step | by whole loop |", "| --- | --- | --- | --- |", *rows])
    print(table, file=sys.stderr)
    folder = arguments.out / time.strftime("%Y-%m-%d-%H%M")
    folder.mkdir(parents=True)
    (folder / "runs.json").write_text(
        json.dumps({"hardware": facts.hardware(), "versions": facts.versions(), "runs": runs})
    )
    (folder / "table.md").write_text(f"{table}\n")


if __name__ == "__main__":
    main()
