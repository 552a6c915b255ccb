"""Predictions beside a sweep, for rows that cannot be measured here: more ranks than cores, or a missing engine."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.calibration.engines import MODELS
from manyhands.errors import ManyhandsError, UserError
from manyhands.launch.user_folder import calibration_path
from manyhands.record.calibration import open_calibration
from manyhands.record.simulation import Estimate, SimulationRow
from manyhands.record.sweep import Cell, Interval, Kind, PredictedRow, Predictions, Row
from manyhands.record.texts import count
from manyhands.simulation.simulate import simulate

COVERAGE_PCT = 90.0
"""Confidence level of the simulator's intervals."""
KEEP_TIMES = {"lr", "warmup", "lr_decay", "seed", "top", "blas_threads"}
"""Options of runs with which a calibration's times still hold."""


def predict_rows(kind: Kind, task: str, rows: Sequence[Row], options: Mapping[str, Any], limit_s: float) -> Predictions:
    """Predict the rows that could not be measured with a core for each rank, from this machine's calibration.

    Without one, or where the calibration does not fit, notes say why and what to run. After `limit_s` seconds no
    further prediction is begun.
    """
    end_s = time.monotonic() + limit_s
    try:
        calibration = open_calibration(calibration_path())
        if calibration is None:
            hint = f"run 'manyhands calibrate {task}', then this command again, to have them predicted"
            missing = f"{count(len(rows), 'row')} cannot be measured here with a core for each rank"
            return Predictions(notes=[f"{missing}; {hint}"])
        check_options(options)
    except UserError as error:
        return Predictions(notes=[f"nothing is predicted: {error}"])
    predictions, notes = Predictions(), dict[str, None]()
    for cells in _alike(kind, rows):
        if time.monotonic() >= end_s:
            notes["there was no time to predict all rows that cannot be measured here"] = None
            break
        try:
            predictions.rows += _predicted(kind, task, cells, notes)
        except ManyhandsError as error:
            notes[f"{cells[0].cell.series} is not predicted: {error}"] = None
    made = f"the calibration of {calibration.made}, {calibration.circumstances()}"
    predictions.source = made if predictions.rows else ""
    predictions.notes = list(notes)
    return predictions


def check_options(options: Mapping[str, Any]) -> None:
    """Raise UserError where an option of the runs changes the times that were calibrated."""
    other = sorted(name for name in options if name not in KEEP_TIMES)
    if options.get("blas_threads", 1) != 1:
        other.append("blas_threads")
    if other:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in other)
        raise UserError(f"the calibration does not know {names}")


def _alike(kind: Kind, rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield groups of rows that one simulation predicts: they differ in their number of workers alone."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.cell.series, row.cell.image_size, _batch(kind, row.cell)), []).append(row)
    yield from groups.values()


def _batch(kind: Kind, cell: Cell) -> int | str:
    """Return the batch that is the same for any number of workers: the global one, or that of each worker."""
    return cell.batch_size // cell.size if kind == "weak" and isinstance(cell.batch_size, int) else cell.batch_size


def _predicted(kind: Kind, task: str, rows: Sequence[Row], notes: dict[str, None]) -> list[PredictedRow]:
    cell = rows[0].cell
    if cell.engine not in MODELS or cell.threads > 1:
        raise UserError(f"engine {cell.engine} cannot be calibrated")
    if cell.image_size or cell.replicate > 1 or (kind == "weak" and cell.batch_size == "full"):
        raise UserError("the calibration is of the task's own images and data")
    batch: dict[str, Any] = {"batch_per_worker" if kind == "weak" else "batch_size": _batch(kind, cell)}
    record = simulate(
        task,
        workers=[row.cell.size for row in rows],
        engine=cell.engine,
        syncs=[cell.sync],
        say=lambda sentence: notes.setdefault(sentence),
        probe=False,  # its two seconds would come out of the sweep's budget
        **batch,
    )
    by_workers = {row.workers: row for row in record.rows}
    # A simulation that is interrupted returns the rows that it has.
    return [_prediction(row, by_workers[row.cell.size]) for row in rows if row.cell.size in by_workers]


def _prediction(row: Row, simulated: SimulationRow) -> PredictedRow:
    ms, ranks = simulated.step_ms, simulated.workers + simulated.servers
    per_s = Estimate(*(simulated.batch_size / bound * 1e3 for bound in (ms.value, ms.high, ms.low)))
    return PredictedRow(
        cell=row.cell,
        ranks=ranks,
        why="more ranks than cores" if row.oversubscribed else row.failed,
        step_ms=_interval(ms),
        samples_per_s=_interval(per_s),
        speed_up=_interval(simulated.speed_up),
        efficiency=_interval(simulated.efficiency),
    )


def _interval(estimate: Estimate) -> Interval:
    return Interval(value=estimate.value, low=estimate.low, high=estimate.high, coverage_pct=COVERAGE_PCT)
