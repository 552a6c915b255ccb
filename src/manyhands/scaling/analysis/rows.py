"""The rows of a sweep's table: medians over the repeats of each cell, and its figures of scaling."""

from collections import Counter
from functools import partial

import numpy as np

from manyhands.measurement import stats
from manyhands.record import Others
from manyhands.record.sweep import Cell, Interval, Kind, Measure, Row
from manyhands.scaling.analysis.measured import Measured

MEDIANS = (
    "compute_ms",
    "serial_ms",
    "comm_ms",
    "wait_ms",
    "read_s",
    "eval_s",
    "total_s",
    "bytes_per_step",
    "messages_per_step",
    "train_loss",
    "test_loss",
    "test_accuracy",
)
"""Columns whose median over the repeats is shown as it is."""


def rows(kind: Kind, cells: list[Cell], measures: list[Measure], cores: int) -> list[Row]:
    """Return a row for the baseline and each cell, with no figures where all its runs failed."""
    measured = Measured(kind, cells, measures, cores)
    return [row_of(measured, cell) for cell in cells if cell.role != "probe"]


def row_of(measured: Measured, cell: Cell) -> Row:
    """Return the row of one cell."""
    runs = measured.good(cell)
    row = Row(
        cell=cell,
        repeats=len(runs),
        failed=_failures(measured, cell),
        oversubscribed=measured.ranks(cell) > measured.cores,
    )
    if not runs:
        return row
    figures = _medians(list(runs.values())) | _scaling(measured.kind, cell, speed_up(measured, cell))
    return row.model_copy(update=figures)


def rates(measured: Measured, cell: Cell | None) -> dict[int, float]:
    """Return the samples per second of a cell's runs that went well, by repeat."""
    return {i: run.batch_size / run.step_ms * 1e3 for i, run in measured.good(cell).items()}


def speed_up(measured: Measured, cell: Cell) -> Interval | None:
    """Return how much faster a cell is than its baseline, repeat by repeat; None without a baseline."""
    alone = rates(measured, measured.baseline(cell))
    return stats.median(stats.paired(rates(measured, cell), alone)) if alone else None


def _failures(measured: Measured, cell: Cell) -> str:
    """Say how many runs failed and why; several reasons are joined, the most frequent first."""
    reasons = measured.failures(cell)
    if not reasons:
        return "" if measured.good(cell) else "not measured"
    why = "; ".join(reason for reason, _ in Counter(reasons).most_common())
    return f"{len(reasons)} of {len(reasons) + len(measured.good(cell))} runs failed: {why}"


def _medians(runs: list[Measure]) -> dict[str, object]:
    joules = [run.energy_j for run in runs if run.energy_j is not None]
    found: dict[str, object] = {name: float(np.median([getattr(run, name) for run in runs])) for name in MEDIANS}
    return found | {
        "step_ms": stats.median([run.step_ms for run in runs]),
        "samples_per_s": stats.median([run.batch_size / run.step_ms * 1e3 for run in runs]),
        "epoch_s": float(np.median([run.steps_per_epoch * run.step_ms / 1e3 for run in runs])),
        "max_rss_bytes": int(np.median([run.max_rss_bytes for run in runs])),
        "energy_j": float(np.median(joules)) if joules else None,
        "others": _middle([run.others for run in runs if run.others is not None]),
    }


def _middle(found: list[Others]) -> Others | None:
    """Return the median, or of an even number the upper one of the two in the middle."""
    return sorted(found, key=lambda others: others.cores)[len(found) // 2] if found else None


def _scaling(kind: Kind, cell: Cell, speed_up: Interval | None) -> dict[str, object]:
    if speed_up is None:
        return {}
    efficiency = partial(stats.efficiency, workers=cell.size)
    return {
        "speed_up": speed_up,
        "efficiency": stats.through(efficiency, speed_up),
        "improvement_pct": stats.improvement_pct(speed_up.value),
        "karp_flatt": _karp_flatt(speed_up, cell.size) if kind == "strong" else None,
    }


def _karp_flatt(speed_up: Interval, workers: int) -> Interval | None:
    """Return the serial share, where there can be one: of several workers, neither slower than one nor superlinear."""
    if not workers > 1 or not 1 <= speed_up.value <= workers:
        return None
    found = stats.through(partial(stats.karp_flatt, workers=workers), speed_up)
    return found.model_copy(update={"low": max(0.0, found.low), "high": min(1.0, found.high)})
