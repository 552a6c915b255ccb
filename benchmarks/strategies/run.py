"""Every engine with every strategy that its comm allows, through the command line, and what each strategy costs.

    python benchmarks/strategies/run.py                      # the whole matrix, two epochs each
    python benchmarks/strategies/run.py --engines mpi --epochs 5 --repeats 3

Each cell is one `manyhands train mlp --engine E --sync S --workers 2 --json` (median of the repeats, which are
interleaved). Writes a dated folder with every record, the machine's facts and the tables.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from manyhands import launch, registry, sync
from manyhands.machine import facts
from manyhands.sync import Sync

HERE = Path(__file__).parent
VARIANTS = ("compressed:codec=int8", "compressed:codec=topk", "compressed:codec=powersgd", "parameter-server:servers=2")


def main() -> None:
    """Run the matrix, then write records and tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(launch.names()))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--task", default="mlp")
    options = parser.parse_args()
    folder = HERE / "records" / time.strftime("%Y-%m-%d-%H%M")
    folder.mkdir(parents=True)
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(options.repeats):
        for engine in options.engines.split(","):
            for text in (*registry.names(sync, Sync), *VARIANTS):
                if sync.make(text).requires <= launch.make(engine).features:
                    cells.setdefault((engine, text), []).append(run(engine, text, options))
    with open(folder / "records.jsonl", "w") as f:
        f.writelines(json.dumps(record) + "\n" for records in cells.values() for record in records)
    (folder / "facts.json").write_text(json.dumps({**facts.hardware(), **facts.versions()}, indent=1) + "\n")
    (folder / "table.md").write_text(table(cells))
    print(table(cells))
    failed = [cell for cell, records in cells.items() if any("failed" in r for r in records)]
    sys.exit(f"failed: {failed}" if failed else 0)


def run(engine: str, text: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train through the command line; return the record, or why there is none."""
    workers = 1 if engine == "serial" else options.workers
    with TemporaryDirectory() as out:
        command = [
            *(sys.executable, "-m", "manyhands", "train", options.task, "--engine", engine, "--sync", text, "--json"),
            *("--workers", str(workers), "--epochs", str(options.epochs), "--out", out),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    print(engine, text, "ok" if done.returncode == 0 else done.stderr[-500:], file=sys.stderr, flush=True)
    if done.returncode != 0:
        return {"engine": engine, "sync": text, "failed": done.stderr[-2000:]}
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def table(cells: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Put each cell in a line."""
    heads = "engine", "strategy", "samples/s", "bytes per step", "messages per step", "test accuracy", "train loss"
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for (engine, text), records in cells.items():
        if any("failed" in r for r in records):
            lines.append(f"| {engine} | {text} | failed | | | | |")
            continue
        speed = statistics.median(r["samples_per_s"] for r in records)
        last = records[-1]
        per_step = [f"{last[key] / last['steps']:,.0f}" for key in ("bytes_sent", "messages")]
        scores = [f"{100 * last['test_accuracy']:.2f} %", f"{last['train_loss'][-1]:.4f}"]
        lines.append(f"| {' | '.join([engine, text, f'{speed:,.0f}', *per_step, *scores])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
