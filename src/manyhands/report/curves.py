"""The curves of a sweep: rows that differ in their number of workers alone, and the laws fitted to them."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from manyhands.record.sweep import Cell, Finding, Fit, PredictedRow, Row, SweepRecord
from manyhands.record.texts import images_name
from manyhands.report.scores import grouped

Batch = int | Literal["full"]


@dataclass(frozen=True)
class Curve:
    """One engine and strategy over the number of workers."""

    name: str
    engine: str
    style: int
    """Index of the curve among those of its engine."""
    baseline: Row | None
    """One worker alone."""
    rows: list[Row]
    """Rows with at least one good run, by number of workers."""
    fits: list[Fit]
    findings: list[tuple[Row, Finding]]
    predicted: list[PredictedRow]
    """Rows that could not be measured, by number of workers."""

    @property
    def with_baseline(self) -> list[Row]:
        """The rows, after the baseline where the curve has no row of one worker itself."""
        alone = [self.baseline] if self.baseline and self.baseline.repeats else []
        return self.rows if self.rows and self.rows[0].cell.size == 1 else [*alone, *self.rows]


def curves(record: SweepRecord) -> list[Curve]:
    """Group the rows of a sweep into curves, in the order of the record."""
    cells = [row for row in record.rows if row.cell.role == "cell"]
    groups = grouped(cells, lambda row: _key(record, row.cell))
    several_batches = len({batch for _, batch, _ in groups}) > 1
    several_images = len({image for *_, image in groups}) > 1
    styles: Counter[str] = Counter()
    drawn = []
    for (series, batch, image), alike in groups.items():
        names = [series]
        names += [f"batch {batch}"] if several_batches else []
        names += [images_name(image)] if several_images else []
        alone = (r for r in record.rows if r.cell.role == "baseline")
        baseline = next((r for r in alone if (r.cell.batch_size, r.cell.image_size) == (batch, image)), None)
        rows = sorted((row for row in alike if row.repeats), key=lambda row: row.cell.size)
        fits = [f for f in record.fits if (f.series, f.batch_size, f.image_size) == (series, batch, image)]
        findings = [(row, f) for row in rows for f in record.findings if f.row == row.cell.key]
        engine, cells_of = alike[0].cell.engine, [row.cell for row in alike]
        foretold = [prediction for prediction in record.predictions.rows if prediction.cell in cells_of]
        foretold.sort(key=lambda prediction: prediction.cell.size)
        drawn.append(Curve(", ".join(names), engine, styles[engine], baseline, rows, fits, findings, foretold))
        styles[engine] += 1
    return drawn


def _key(record: SweepRecord, cell: Cell) -> tuple[str, Batch, int]:
    """Return the key of a cell's curve: its series, its baseline's batch and its image size."""
    batch: Batch = cell.batch_size
    if record.kind == "weak" and isinstance(batch, int):
        batch //= cell.size
    return cell.series, batch, cell.image_size


def fitted_speed_up(fit: Fit, workers: float) -> float:
    """Return the speed-up that a fitted law predicts for a number of workers."""
    value = {name: interval.value for name, interval in fit.parameters.items()}
    n = workers
    if fit.law == "amdahl":
        return 1 / max(1e-12, value["serial"] + (1 - value["serial"]) / n)
    if fit.law == "gustafson":
        return n - value["serial"] * (n - 1)
    slower = 1 + value["contention"] * (n - 1) + value["coherency"] * n * (n - 1)
    return n / max(1e-12, slower)
