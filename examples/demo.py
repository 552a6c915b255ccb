"""What `make demo` shows: one network, trained by one worker, by two threads and by two MPI processes."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import manyhands
from manyhands.cli.show import people, progress
from manyhands.cli.tables import print_table
from manyhands.report.tables.runs import answers_table, compared_table

ENGINES = ({"engine": "serial"}, {"engine": "threads", "workers": 2}, {"engine": "mpi", "workers": 2})
EPOCHS = 5
BATCH = {"batch_size": 512, "lr_scaling": "linear"}  # enough rows for two workers to share


def train_all(out: Path, **options: object) -> list[manyhands.RunRecord]:
    """Train `mlp` on all of MNIST with each engine, one core per worker."""
    records = []
    for engine in ENGINES:
        with progress(f"{engine['engine']:>7}") as observe:
            one_core_each = {"blas_threads": 1, "data": "mnist"}
            records.append(manyhands.train("mlp", out=out, observe=observe, **engine, **one_core_each, **options))
    return records


def distance(out: Path, records: list[manyhands.RunRecord]) -> float:
    """Return how far the weights are from the serial run's: length of the difference over length of the weights."""
    serial, *others = [_weights(out / r.id / "model.safetensors") for r in records]
    return float(max(np.linalg.norm(other - serial) for other in others) / np.linalg.norm(serial))


def _weights(path: Path) -> np.ndarray:
    return np.concatenate([w.ravel() for _, w in sorted(load_file(path).items())])


def main() -> None:
    """Train, compare, and print one table."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="manyhands-demo-") as folder:
        out = Path(folder)
        people.print(f"1. {EPOCHS} epochs of mlp (784-256-128-10) on MNIST, batch 512, one core per worker")
        records = train_all(out, epochs=EPOCHS, **BATCH)
        apart = distance(out, records)
        people.print("2. 100 steps with --exact, which gives the same bits whoever does the work")
        exact = train_all(out, steps=100, exact=True)
    people.print()
    print_table(people, compared_table(records, baseline=records[0]))
    people.print(f"\nthe same answer to round-off: the weights are {apart:.0e} of their length apart\n")
    print_table(people, answers_table(exact))
    same = len({r.weights_sha256 for r in exact}) == 1
    people.print(f"\n{'the same answer to the last bit' if same else 'THE BITS DIFFER'} with --exact")
    people.print(f"done in {time.perf_counter() - started:.0f} s; next: manyhands train mlp --engine mpi --workers 2")
    if not same or apart > 1e-3:
        sys.exit("the workers did not give the same answer")


if __name__ == "__main__":
    main()
