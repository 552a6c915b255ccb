"""Calibrate, then validate, as a newcomer types it, in one state of the machine.

Usage: python benchmarks/validation/states.py STATE --out DIR [--task mlp] [--workers 1,2] [--batch-size 96]
       STATE is one of: idle, half-a-core (another program uses one core for half of the time), blas-threads
       (OMP_NUM_THREADS=2 in the environment), pause (ten minutes between the two commands)

DIR/STATE gets the calibration, the validation with its predictions, and what the commands printed. The README beside
this file says what came out.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SYNCS = "allreduce,reduce-broadcast,local-sgd:period=8"
STATES = ("idle", "half-a-core", "blas-threads", "pause")
PAUSE_S = 600.0
CYCLE_S = 0.1
"""Length of a cycle of the other program: it computes for one half, and sleeps for the other."""


def main() -> None:
    """Run both commands in the state, and keep what they leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state", choices=STATES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", default="mlp")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--engines", default="threads,mpi")
    parser.add_argument("--batch-size", default="96", help="not the one that the calibration's own runs have")
    parser.add_argument("--repeats", default="5")
    parser.add_argument("--budget", default="90s")
    arguments = parser.parse_args()
    out = arguments.out / arguments.state
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **({"OMP_NUM_THREADS": "2"} if arguments.state == "blas-threads" else {})}
    calibration = out / "calibration.json"
    common = ["--engines", arguments.engines, "--calibration", str(calibration)]
    with half_a_core() if arguments.state == "half-a-core" else contextlib.nullcontext():
        run(out, environment, "calibrate", arguments.task, "--budget", arguments.budget, *common)
        time.sleep(PAUSE_S if arguments.state == "pause" else 0.0)
        run(
            *(out, environment, "validate", arguments.task, "--workers", arguments.workers, "--syncs", SYNCS),
            *("--batch-size", arguments.batch_size, "--repeats", arguments.repeats, "--out", str(out / "validations")),
            *common,
        )
    for folder in (out / "validations").glob("*/runs"):
        shutil.rmtree(folder)  # the ledger has their times


def run(out: Path, environment: dict[str, str], *words: str) -> None:
    """Run a command of manyhands, and keep what it prints."""
    with open(out / "printed.txt", "a") as file:
        command = [sys.executable, "-m", "manyhands", *words]
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=True)


@contextlib.contextmanager
def half_a_core() -> Iterator[None]:
    """Keep one core busy for half of the time, by another process."""
    code = f"""
import time
while True:
    until = time.perf_counter() + {CYCLE_S / 2}
    while time.perf_counter() < until:
        pass
    time.sleep({CYCLE_S / 2})
"""
    program = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()


if __name__ == "__main__":
    main()
