"""The rows of a sweep's table: medians over the repeats of each cell, and its figures of scaling."""

from collections import Counter
from functools import partial

import numpy as np

from manyhands.measurement import stats
from manyhands.record.sweep import Cell, Interval, Measure, Row
from manyhands.scaling.analysis.measured import Measured

MEDIANS = (
    *("compute_ms", "serial_ms", "comm_ms", "wait_ms", "gather_ms", "read_s", "eval_s", "total_s"),
    *("bytes_per_step", "messages_per_step", "train_loss", "test_loss"),
)
"""Columns whose median over the repeats is shown as it is."""


def rows(measured: Measured) -> list[Row]:
    """Return a row for the baseline and each cell, with no figures where all its runs failed."""
    return [_row(measured, cell) for cell in measured.cells if cell.role != "probe"]


def _row(measured: Measured, cell: Cell) -> Row:
    runs = measured.good(cell)
    row = Row(
        cell=cell,
        ranks=measured.ranks(cell),
        repeats=len(runs),
        failed=_failures(measured, cell),
        oversubscribed=measured.ranks(cell) > measured.cores,
    )
    if not runs:
        return row
    figures = _medians(list(runs.values())) | _scaling(measured, cell)
    return row.model_copy(update=figures)


def rates(measured: Measured, cell: Cell | None) -> dict[int, float]:
    """Return the samples per second of a cell's successful runs, by repeat."""
    return {i: run.batch_size / run.step_ms * 1e3 for i, run in measured.good(cell).items()}


def _failures(measured: Measured, cell: Cell) -> str:
    """Say how many runs failed and why, the most frequent reason first."""
    reasons = measured.failures(cell)
    if not reasons:
        return "" if measured.good(cell) else "not measured"
    why = "; ".join(reason for reason, _ in Counter(reasons).most_common())
    return f"{len(reasons)} of {len(reasons) + len(measured.good(cell))} runs failed: {why}"


def _medians(runs: list[Measure]) -> dict[str, object]:
    joules = [run.energy_j for run in runs if run.energy_j is not None]
    accuracies = [run.test_accuracy for run in runs if run.test_accuracy is not None]
    medians: dict[str, object] = {name: float(np.median([getattr(run, name) for run in runs])) for name in MEDIANS}
    others = sorted((run.others for run in runs if run.others is not None), key=lambda others: others.cores)
    return medians | {
        "step_ms": stats.median([run.step_ms for run in runs]),
        "samples_per_s": stats.median([run.batch_size / run.step_ms * 1e3 for run in runs]),
        "epoch_s": float(np.median([run.steps_per_epoch * run.step_ms / 1e3 for run in runs])),
        "max_rss_bytes": int(np.median([run.max_rss_bytes for run in runs])),
        "energy_j": float(np.median(joules)) if joules else None,
        "test_accuracy": float(np.median(accuracies)) if accuracies else None,
        "others": others[len(others) // 2] if others else None,  # the upper median
    }


def _scaling(measured: Measured, cell: Cell) -> dict[str, object]:
    """Return speed-up over the baseline, paired by repeats, and what follows from it; nothing without a baseline."""
    alone = rates(measured, measured.baseline(cell))
    if not alone:
        return {}
    ours, ranks = rates(measured, cell), measured.ranks(cell)
    speed_up = stats.ratio(ours, alone)
    return {
        "speed_up": speed_up,
        "unpaired": stats.num_unpaired(ours, alone),
        "efficiency": stats.through(lambda value: value / ranks, speed_up),
        "improvement_pct": stats.improvement_pct(speed_up.value),
        "karp_flatt": _karp_flatt(speed_up, cell.size) if measured.kind == "strong" else None,
    }


def _karp_flatt(speed_up: Interval, workers: int) -> Interval | None:
    """Return the serial fraction of several workers that are neither slower than one nor superlinear, else None."""
    if not workers > 1 or not 1 <= speed_up.value <= workers:
        return None
    serial = stats.through(partial(stats.karp_flatt, workers=workers), speed_up)
    return serial.model_copy(update={"low": max(0.0, serial.low), "high": min(1.0, serial.high)})
