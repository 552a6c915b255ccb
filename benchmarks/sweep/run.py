"""Time tasks over engines, workers and devices, interleaved: python benchmarks/sweep/run.py cpu --budget 300

Every round runs each row once, so that a slow spell of the machine hits all rows alike. The figure of a run is the
global batch over the median step; warm-up steps are left out. The records of all runs are kept.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import manyhands
from manyhands.machine import facts
from manyhands.record.run import RunDir, read_steps

WARM_UP = 20


@dataclass(frozen=True)
class Row:
    """One configuration."""

    task: str
    batch_size: int | str
    steps: int
    engine: str = "serial"
    workers: int = 1
    threads: int = 1
    device: str = "cpu"

    @property
    def label(self) -> str:
        """What the table calls it."""
        many = f"{self.workers}x{self.threads}" if self.threads > 1 else str(self.workers)
        return f"{self.task} batch {self.batch_size} {self.device} {self.engine} {many}"


def cpu_rows() -> list[Row]:
    """Strong scaling over the cores there are."""
    counts = [n for n in (2, 4, 8, 16, 32) if n <= facts.cores()]
    rows = []
    for task, batch, steps in (("mlp", 64, 300), ("mlp", 512, 150), ("cnn", 512, 30)):
        rows.append(Row(task, batch, steps))
        rows += [Row(task, batch, steps, engine, n) for engine in ("threads", "mpi") for n in counts]
    return rows


def gpu_rows() -> list[Row]:
    """Every task on the GPU and on the CPU, and every engine that can drive a GPU."""
    tasks = (
        ("softmax", "full", 40),
        ("mlp", 64, 600),
        ("mlp-sigmoid", "full", 40),
        ("cnn", 128, 200),
        ("dnn", 1024, 400),
    )
    rows = [Row(*t, device=device) for t in tasks for device in ("cpu", "cuda")]
    for task in (("mlp", 512, 300), ("cnn", 1024, 60)):
        rows += [
            Row(*task, device="cuda"),
            Row(*task, engine="threads", workers=2, device="cuda"),
            Row(*task, engine="mpi", workers=2, device="cuda"),
            Row(*task, engine="hybrid", workers=2, threads=2, device="cuda"),
        ]
    return rows


def measure(row: Row, out: Path) -> dict[str, Any]:
    """Run a row once; return its figures."""
    options = {k: v for k, v in asdict(row).items() if k not in ("task", "steps")}
    blas = {"blas_threads": 1} if row.engine != "serial" or row.device == "cpu" else {}
    record = manyhands.train(
        row.task, out=out, steps=row.steps + WARM_UP, data="mnist", replicate=1, eval_every=10**6, **options, **blas
    )
    steps = read_steps(RunDir(out / record.id))[WARM_UP:]
    step_ms = statistics.median(step["ms"] for step in steps)
    return {
        "row": row.label,
        "samples_per_s": record.batch_size / step_ms * 1e3,
        "step_ms": step_ms,
        **record.model_dump(include={"compute_s", "comm_s", "wait_s", "test_accuracy", "test_loss", "weights_sha256"}),
    }


def main() -> None:
    """Measure until the budget is spent, then print the table and keep the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=("cpu", "gpu"))
    parser.add_argument("--only", default="", help="the task whose rows are run, such as cnn (default: all)")
    parser.add_argument("--budget", type=float, default=300, help="seconds; at least one round is run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("sweep.json"))
    args = parser.parse_args()
    rows = [row for row in (cpu_rows() if args.preset == "cpu" else gpu_rows()) if row.task.startswith(args.only)]
    started, runs = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for row in rows:
                if number and time.perf_counter() - started > args.budget:
                    break
                runs.append({"round": number, **measure(row, Path(folder))})
                print(f"{runs[-1]['row']:<40} {runs[-1]['samples_per_s']:>12,.0f} samples/s", file=sys.stderr)
            about = {"hardware": facts.hardware(), "versions": facts.versions(), "warm_up_steps": WARM_UP}
            args.out.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")
    for row in rows:
        rates = [r["samples_per_s"] for r in runs if r["row"] == row.label]
        print(f"{row.label:<40} {statistics.median(rates):>12,.0f} samples/s  ({len(rates)} runs)")


if __name__ == "__main__":
    main()
