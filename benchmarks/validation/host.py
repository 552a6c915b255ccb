"""Hold predictions for up to all cores of one host against runs.

Usage: python benchmarks/validation/host.py --out DIR [--workers 2,4,8,16] [--tasks mlp,cnn] [--engines threads,mpi]
       [--rounds 3] [--runs 2] [--ranks 0] [--batch-size 192] [--budget 90]

As many ranks are calibrated as `manyhands calibrate` would, or `--ranks`. It does what `manyhands validate` does, with
fewer starts of Python: a run of threads is a fork of this process, and one world of MPI ranks makes several runs. DIR
gets the calibrations, the predictions (before the first run), every run's figures and the ledger, which `manyhands
report` draws. The README beside this file says what came out.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from manyhands import train
from manyhands.launch.environment import outer_world
from manyhands.launch.spawn import find_mpiexec
from manyhands.machine import facts
from manyhands.measurement.measure import figures
from manyhands.record.simulation import LEDGER, SimulationRecord
from manyhands.record.sweep import Measure
from manyhands.simulation.simulate import simulate
from manyhands.validation.closing import calibrate
from manyhands.validation.validate import PredictedCase, compared

TASKS = "mlp,cnn,softmax"
SYNCS = ("allreduce", "reduce-broadcast", "parameter-server", "local-sgd:period=8")
BATCHES = {"mlp": 256, "cnn": 256}
"""Global batches large enough for sixteen workers; of the others, the task's own."""
RUN_S, STEPS = 0.8, (24, 1000)
"""How long the steps of a run should take, and the fewest and most of them."""
TIMEOUT_S = 240.0
RUNS = "runs.jsonl"
FORKS = multiprocessing.get_context("forkserver")
"""Forks of a process that has imported everything and started no thread yet."""


def main() -> None:
    """Calibrate, predict, run, compare."""
    if outer_world() is not None:
        run_in_world(Path(sys.argv[1]))
        return
    asked = read_arguments()
    FORKS.set_forkserver_preload(["manyhands.run", "manyhands.simulation.simulate", "manyhands.validation.validate"])
    out: Path = asked.out
    out.mkdir(parents=True, exist_ok=True)
    say = lambda *words: print(f"{time.strftime('%H:%M:%S')}", *words, file=sys.stderr, flush=True)  # noqa: E731
    tasks, engines = asked.tasks.split(","), asked.engines.split(",")
    cases: list[PredictedCase] = []
    for task in tasks:  # one after the other: machines change, so what was calibrated is run right after it
        own = calibrated_and_predicted(task, engines, asked, out, say)
        cases += own
        now = [case for case in own if case.engine in asked.measure.split(",")]
        for turn in range(asked.rounds):
            for found in one_round(now, turn, asked.runs, say):
                with open(out / RUNS, "a") as file:
                    file.write(found.model_dump_json() + "\n")
        write_ledger(out, cases)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", default="2,4,8,16")
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--engines", default="threads,mpi")
    parser.add_argument("--measure", default="threads,mpi", help="engines to run now; what was run before is kept")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2, help="of each case in a round, and in one world of MPI ranks")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds to calibrate a task")
    parser.add_argument("--ranks", type=int, default=0, help="the most ranks to calibrate; 0 for the cores")
    parser.add_argument("--batch-size", type=int, default=0, help="global batch instead of those in BATCHES")
    return parser.parse_args()


def calibrated_and_predicted(
    task: str, engines: list[str], asked: argparse.Namespace, out: Path, say: Callable[..., None]
) -> list[PredictedCase]:
    """Calibrate a task, unless that was done, and predict it with every engine."""
    kept = out / f"calibration-{task}.json"
    if not kept.exists():
        calibrate([task], path=kept, engines=engines, ranks=asked.ranks, budget_s=asked.budget, say=say)
        say(f"calibrated {task}")
    with ProcessPoolExecutor(mp_context=FORKS) as pool:
        asks = [(task, engine, asked.workers, asked.batch_size, kept, out) for engine in engines]
        cases = [case for found in pool.map(predicted, *zip(*asks, strict=True)) for case in found]
    say(f"predicted {len(cases)} cases")
    return cases


def predicted(
    task: str, engine: str, workers: str, batch_size: int, calibration: Path, out: Path
) -> list[PredictedCase]:
    """Predict a task with every strategy and number of workers, and write it down."""
    path = out / f"prediction-{engine}-{task}.json"
    if not path.exists():
        batch = batch_size or BATCHES.get(task)
        found = simulate(task, workers=workers, syncs=SYNCS, engine=engine, calibration=calibration, batch_size=batch)
        path.write_text(found.model_dump_json(indent=1) + "\n")
    found = SimulationRecord.model_validate_json(path.read_text())
    cases = [PredictedCase(engine, row, found, steps_of(row.step_ms.value)) for row in found.rows]
    return [case for case in cases if num_ranks(case) <= facts.cores()]


def steps_of(step_ms: float) -> int:
    """Return the steps of a run."""
    return round(min(max(RUN_S * 1e3 / step_ms, STEPS[0]), STEPS[1]))


def name(case: PredictedCase) -> str:
    """Tell a case from all others."""
    return f"{case.predicted.task} {case.key}"


def num_ranks(case: PredictedCase) -> int:
    """Return the ranks of a run."""
    return case.row.workers + case.row.servers


def one_round(cases: list[PredictedCase], turn: int, runs: int, say: Callable[..., None]) -> Iterator[Measure]:
    """Run every case: threads, and one rank, one by one, MPI world by world; every other round the other way round."""
    order = cases if turn % 2 == 0 else cases[::-1]
    in_worlds = [case for case in order if case.engine == "mpi" and num_ranks(case) > 1]
    for case in [case for case in order if case.engine == "threads" or num_ranks(case) == 1] * runs:
        found = run_forked(case)
        say(turn, name(case), found.failed or f"{found.step_ms:.3f} ms, predicted {case.row.step_ms.value:.3f}")
        yield found
    for size in dict.fromkeys(num_ranks(case) for case in in_worlds):
        own = [case for case in in_worlds if num_ranks(case) == size]
        predictions = {name(case): case.row.step_ms.value for case in own}
        for found in run_world(own * runs, size):
            say(turn, found.cell, found.failed or f"{found.step_ms:.3f} ms, predicted {predictions[found.cell]:.3f}")
            yield found


def run(task: str, options: dict[str, Any], cell: str) -> Measure:
    """Train once in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return figures(train(task, out=folder, **options)).model_copy(update={"cell": cell})


def run_forked(case: PredictedCase) -> Measure:
    """Train in a process of its own, which need not import anything, unless it starts an MPI rank."""
    here, there = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=run_and_tell, args=(there, case.predicted.task, case.options, name(case)))
    child.start()
    there.close()
    try:
        return Measure.model_validate_json(here.recv()) if here.poll(TIMEOUT_S) else failed(case, "took too long")
    except EOFError:
        return failed(case, "ended without a word")
    finally:
        child.kill()
        child.join()


def run_and_tell(there: Connection, task: str, options: dict[str, Any], cell: str) -> None:
    """Train, and send what came out."""
    there.send(run(task, options, cell).model_dump_json())


def failed(case: PredictedCase, reason: str) -> Measure:
    """Say that a run came to nothing."""
    return Measure(cell=name(case), repeat=0, failed=reason)


def run_world(cases: list[PredictedCase], size: int) -> list[Measure]:
    """Let so many MPI ranks make these runs one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps([(case.predicted.task, case.options, name(case)) for case in cases]))
        command = [*find_mpiexec(), "-n", str(size), sys.executable, __file__, str(path)]
        try:
            subprocess.run(command, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
        done = path.with_suffix(".done")
        lines = done.read_text().splitlines() if done.exists() else []
        found = [Measure.model_validate_json(line) for line in lines]
        return found + [failed(case, "its world of MPI ranks ended early") for case in cases[len(found) :]]


def run_in_world(path: Path) -> None:
    """Be a rank: take part in every run of a file; rank 0 writes down what came out."""
    outer = outer_world()
    for task, options, cell in json.loads(path.read_text()):
        found = run(task, options, cell)
        if outer is not None and outer.rank == 0:
            with open(path.with_suffix(".done"), "a") as file:
                file.write(found.model_dump_json() + "\n")


def write_ledger(out: Path, cases: list[PredictedCase]) -> None:
    """Write the line of each case that was run."""
    lines = (out / RUNS).read_text().splitlines() if (out / RUNS).exists() else []
    runs = [Measure.model_validate_json(line) for line in lines]
    of_case = [(case, [found for found in runs if found.cell == name(case)]) for case in cases]
    rows = [compared(out.name, case, own) for case, own in of_case if any(not found.failed for found in own)]
    (out / LEDGER).write_text("".join(f"{row.model_dump_json()}\n" for row in rows))


if __name__ == "__main__":
    main()
