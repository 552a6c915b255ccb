"""Predict kept validations again by the present model, from their kept calibrations, and hold that against their runs.

Usage: python benchmarks/validation/again.py FOLDER...

A FOLDER has a calibration and validations.jsonl, as `states.py` and `host.py` leave them. Nothing is run or written: it
tells what a change of the model would have predicted. Such predictions are not blind, since the runs are known.
"""

import statistics
import sys
from pathlib import Path

from manyhands import simulate
from manyhands.record.calibration import Calibration, open_calibration
from manyhands.record.simulation import LEDGER, Estimate, Validation, read_validations
from manyhands.report.scores import grouped, score


def main() -> None:
    """Print the scores of each folder, as predicted then and as predicted now."""
    print("| folder | rows | error then | error now | noise | aim | held then | held now |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in sys.argv[1:]:
        folder = Path(name)
        for path in sorted(folder.rglob(LEDGER)):
            rows = read_validations(path)
            now = predicted_again(folder, rows)
            print_scores(folder.name, rows, now)
            for engine, alike in grouped(rows, lambda row: row.engine).items():
                print_scores(f"{folder.name}, {engine}", alike, [row for row in now if row.engine == engine])


def predicted_again(folder: Path, rows: list[Validation]) -> list[Validation]:
    """Return the rows with the predictions of the present model."""
    estimates: dict[tuple[str, str, str, int], dict[int, Estimate]] = {}
    again = []
    for row in rows:
        key = (row.task, row.engine, row.sync, row.batch_size)
        if key not in estimates:
            workers = sorted({other.workers for other in rows if other.sync == row.sync and other.engine == row.engine})
            record = simulate(
                row.task,
                workers=workers,
                engine=row.engine,
                syncs=row.sync,
                batch_size=row.batch_size,
                device=row.device,
                calibration=calibration_of(folder, row.task),
                probe=False,
            )
            estimates[key] = {predicted.workers: predicted.step_ms for predicted in record.rows}
        now = estimates[key][row.workers]
        again.append(row.model_copy(update={"predicted_ms": now, "error_pct": 100 * (now.value / row.median_ms - 1)}))
    return again


def calibration_of(folder: Path, task: str) -> Calibration:
    """Return the calibration of a task."""
    path = next(p for p in (folder / f"calibration-{task}.json", folder / "calibration.json") if p.exists())
    calibration = open_calibration(path)
    assert calibration is not None
    return calibration


def print_scores(name: str, then: list[Validation], now: list[Validation]) -> None:
    """Print one line of the table."""
    before, after = score(then), score(now)
    if before is None or after is None:
        return
    noise = statistics.median(row.noise_pct or 0.0 for row in then)
    print(
        f"| {name} | {before.cases} | {before.error_pct:.1f} % | {after.error_pct:.1f} % | ±{noise:.1f} % | "
        f"{after.aim_pct:.1f} % | {before.held} of {before.runs} ({before.held_pct:.0f} %) | "
        f"{after.held} of {after.runs} ({after.held_pct:.0f} %) |"
    )


if __name__ == "__main__":
    main()
