"""Does a large batch cost accuracy, and do warm-up and decay bring it back? (paper 003, table 2; Goyal et al. 2017)

Paper 003 trained `cnn` for 5 epochs with batch 128 on each of 8 workers and lost up to 4.8 points of accuracy. Here
the 8 workers' global batch of 1024 is trained on however many workers this machine has: the mathematics is the same.
Finished runs are kept in `records/` and not repeated, so the script can be stopped at any time.

    python benchmarks/large_batch/run.py --seeds 3
"""

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from manyhands import RunRecord, train
from manyhands.machine import facts

HERE = Path(__file__).parent
BATCH = 128
EIGHT = {"batch_size": 8 * BATCH, "lr": 8 * 0.001}

WAYS: dict[str, dict[str, object]] = {
    "warmup-linear": {**EIGHT, "warmup": 1.0, "lr_decay": "linear"},
    "warmup-cosine": {**EIGHT, "warmup": 1.0, "lr_decay": "cosine"},
    "warmup": {**EIGHT, "warmup": 1.0},
    "scaled-only": EIGHT,
    "one-worker": {"batch_size": BATCH, "lr": 0.001},
    "unscaled": {"batch_size": 8 * BATCH, "lr": 0.001},
}
SAYS = {
    "one-worker": "1 worker: batch 128, rate 0.001",
    "scaled-only": "8 workers: batch 1024, rate 0.008",
    "warmup": "… and one epoch of warm-up",
    "warmup-linear": "… and linear decay to zero",
    "warmup-cosine": "… or cosine decay to zero",
    "unscaled": "8 workers: batch 1024, rate 0.001",
}


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    (HERE / "records").mkdir(exist_ok=True)
    for way in options.ways.split(","):
        for seed in range(options.seeds):
            path = HERE / "records" / f"{way}-{seed}.json"
            if not path.is_file():
                path.write_text(run(way, seed, options.device).model_dump_json(indent=1) + "\n")
                print(
                    f"{way} seed {seed}: {RunRecord.model_validate_json(path.read_text()).test_accuracy:.2%}",
                    flush=True,
                )
    (HERE / "table.md").write_text(table())
    print(table())


def run(way: str, seed: int, device: str) -> RunRecord:
    """Train `cnn` for 5 epochs."""
    workers = {"engine": "mpi", "workers": facts.cores()} if device == "cpu" else {}
    with TemporaryDirectory() as out:
        return train("cnn", seed=seed, epochs=5, eval_every=5, device=device, out=out, **workers, **WAYS[way])


def table() -> str:
    """Put mean and spread of each way's test accuracy in a table."""
    lines = ["| way | seeds | test accuracy, mean | lowest | highest |", "| --- | --- | --- | --- | --- |"]
    for way, says in SAYS.items():
        files = sorted((HERE / "records").glob(f"{way}-[0-9]*.json"))
        scores = [100 * RunRecord.model_validate_json(f.read_text()).test_accuracy for f in files]
        if scores:
            mean = statistics.mean(scores)
            lines.append(f"| {says} | {len(scores)} | {mean:.2f} % | {min(scores):.2f} | {max(scores):.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
