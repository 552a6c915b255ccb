"""Hold predictions for one GPU against runs, for batches that were not calibrated.

Usage: python benchmarks/validation/gpu.py --out DIR [--tasks mlp,cnn,softmax] [--batches 50,200,1250,5000] [--rounds 3]
       [--budget 30] [--limit 240] [--device cuda]

DIR gets the calibrations, the predictions (before the first run), every run's figures and the ledger, which
`manyhands report` draws. Each round of runs is a process of its own, which makes every run once: forth, then back. What
comes after that is left out once `--limit` seconds have passed: a prediction of several GPUs, `manyhands validate`, and
the tests that need a GPU. `--device cpu` tries the script itself: a CPU stands in for the GPU.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyhands import train
from manyhands.calibration.gpu.calibrate import calibrate_gpu
from manyhands.machine import facts
from manyhands.measurement.measure import figures
from manyhands.record.simulation import LEDGER, Validation
from manyhands.record.sweep import Measure
from manyhands.simulation.simulate import simulate
from manyhands.validation.closing import calibrate
from manyhands.validation.validate import PredictedCase, compared

BATCHES = "50,200,1250,5000"
"""Batches that divide the samples of the built-in tasks, so that no step of an epoch is shorter; none of them is
calibrated, since those are powers of two and the task's own."""
RUN_S, STEPS = 0.8, (30, 8000)
"""How long the steps of a run should take, and the fewest and most of them."""
TIMEOUT_S = 200.0
RUNS = "runs.jsonl"
ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "parallel" / "test_gpu_calibration.py"
BEGUN_S = time.monotonic()


def main() -> None:
    """Calibrate, predict, run, compare."""
    request = read_arguments()
    if request.cases:
        run_cases(request.cases, request.done)
        return
    out: Path = request.out
    out.mkdir(parents=True, exist_ok=True)
    tell(f"{facts.hardware()}, {facts.versions()}")
    batches = [int(batch) for batch in request.batches.split(",")]
    cases = []
    for task in request.tasks.split(","):
        path = out / f"calibration-{task}.json"
        tell(f"calibrating {task}")
        if request.device == "cuda":
            calibrate([task], path=path, device="cuda", budget_s=request.budget, say=tell)
        else:
            calibrate_gpu([task], path=path, device=request.device, budget_s=request.budget, say=tell)
        cases += predicted(task, batches, path, out)
    tell(f"predicted {len(cases)} cases")
    for turn in range(request.rounds):
        one_round(cases if turn % 2 == 0 else cases[::-1], turn, request.device, out)
        rows = write_ledger(out, cases)
    print_table(rows)
    first = request.tasks.split(",")[0]
    calibration = ["--calibration", str(out / f"calibration-{first}.json")]
    several = ["--workers", "1,2,4,8", "--cluster", "nvlink"]
    shared = [*calibration, "--device", "cuda"]
    command("simulate", first, *several, *shared, "--out", str(out / "simulations"), request=request)
    if request.device == "cuda":
        one = ["--workers", "1", "--batch-size", str(batches[1])]
        command("validate", first, *one, *shared, "--out", str(out / "validations"), request=request)
    optional([sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(TESTS)], request)
    tell(f"done after {time.monotonic() - BEGUN_S:.0f} s")


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--tasks", default="mlp,cnn,softmax")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds to calibrate a task")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which nothing further begins")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cases", type=Path, help=argparse.SUPPRESS)  # what a process of one round is given
    parser.add_argument("--done", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def tell(sentence: str) -> None:
    """Print what happens, and when."""
    print(f"{time.monotonic() - BEGUN_S:6.1f} s  {sentence}", flush=True)


def predicted(task: str, batches: Sequence[int], calibration: Path, out: Path) -> list[PredictedCase]:
    """Predict one GPU with every batch, and write it down."""
    cases = []
    for batch in batches:
        record = simulate(task, workers=[1], device="cuda", calibration=calibration, batch_size=batch)
        (out / f"prediction-{task}-{batch}.json").write_text(record.model_dump_json(indent=1) + "\n")
        row = record.rows[0]
        steps = round(min(max(RUN_S * 1e3 / row.step_ms.value, STEPS[0]), STEPS[1]))
        cases.append(PredictedCase(record.engine, row, record, steps))
    return cases


def name(case: PredictedCase) -> str:
    """Tell a case from all others."""
    return f"{case.predicted.task} {case.row.batch_size}"


def one_round(cases: Sequence[PredictedCase], turn: int, device: str, out: Path) -> None:
    """Make every run once in a process of its own; what it has done by its end counts, even if that came early."""
    with tempfile.TemporaryDirectory() as folder:
        given, done = Path(folder) / "cases.json", Path(folder) / "done.jsonl"
        settings = [(case.predicted.task, {**case.options, "device": device}, name(case), turn) for case in cases]
        given.write_text(json.dumps(settings))
        words = [sys.executable, __file__, "--cases", str(given), "--done", str(done)]
        try:
            subprocess.run(words, check=True, timeout=TIMEOUT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            tell(f"round {turn} ended early: {error}")
        lines = done.read_text() if done.exists() else ""
        with open(out / RUNS, "a") as file:
            file.write(lines)
    predictions = {name(case): case.row.step_ms.value for case in cases}
    for line in lines.splitlines():
        run = Measure.model_validate_json(line)
        tell(
            f"round {turn}, {run.cell}: {run.failed or f'{run.step_ms:.4f} ms'}, predicted {predictions[run.cell]:.4f}"
        )


def run_cases(given: Path, done: Path) -> None:
    """Make the runs of one round, after one that does not count, since the first starts the GPU."""
    cases = json.loads(given.read_text())
    task, options, _, _ = cases[0]
    run(task, {**options, "steps": STEPS[0]})
    for task, options, cell, repeat in cases:
        measure = run(task, options).model_copy(update={"cell": cell, "repeat": repeat})
        with open(done, "a") as file:
            file.write(measure.model_dump_json() + "\n")


def run(task: str, options: dict[str, Any]) -> Measure:
    """Train once in this process; a run that fails says why."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return figures(train(task, out=folder, **options))
        except Exception as error:
            return Measure(cell="", repeat=0, failed=str(error))


def write_ledger(out: Path, cases: Sequence[PredictedCase]) -> list[Validation]:
    """Write the line of each case that was run, and return them."""
    lines = (out / RUNS).read_text().splitlines()
    runs = [Measure.model_validate_json(line) for line in lines]
    of_case = [(case, [run for run in runs if run.cell == name(case)]) for case in cases]
    rows = [compared(out.name, case, same) for case, same in of_case if any(not run.failed for run in same)]
    (out / LEDGER).write_text("".join(f"{row.model_dump_json()}\n" for row in rows))
    return rows


def print_table(rows: Sequence[Validation]) -> None:
    """Print predicted against measured, and how many runs their intervals held."""
    print("\n| task | batch | predicted, ms | measured, ms | error | held |\n| --- | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        low, value, high = row.predicted_ms.low, row.predicted_ms.value, row.predicted_ms.high
        runs = ", ".join(f"{ms:.4f}" for ms in row.measured_ms)
        interval, held = f"{value:.4f} ({low:.4f}–{high:.4f})", f"{row.held} of {len(row.measured_ms)}"
        print(f"| {row.task} | {row.batch_size:,} | {interval} | {runs} | {row.error_pct:+.1f} % | {held} |")
    if not rows:
        return
    error = statistics.median(abs(row.error_pct) for row in rows)
    noises = [row.noise_pct for row in rows if row.noise_pct is not None]
    held, runs = sum(row.held for row in rows), sum(len(row.measured_ms) for row in rows)
    noise = f", noise of runs ±{statistics.median(noises):.1f} %" if noises else ""
    print(f"\nmedian error {error:.1f} %{noise}; {held} of {runs} runs were within their intervals\n", flush=True)


def command(*words: str, request: argparse.Namespace) -> None:
    """Run a command of manyhands, if there is time."""
    optional([sys.executable, "-m", "manyhands", *words], request)


def optional(words: Sequence[str], request: argparse.Namespace) -> None:
    """Run a program if there is time; the script goes on whatever becomes of it."""
    left_s = request.limit - (time.monotonic() - BEGUN_S)
    tell(f"{'running' if left_s > 0 else 'no time for'} {' '.join(words[2:])}")
    if left_s > 0:
        try:
            subprocess.run(words, check=False, timeout=TIMEOUT_S)
        except (subprocess.TimeoutExpired, OSError) as error:
            tell(f"it ended early: {error}")


if __name__ == "__main__":
    main()
