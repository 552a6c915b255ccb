"""The curves of a sweep: rows that differ in their number of workers alone, and the laws fitted to them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from manyhands.record import Cell, Finding, Fit, Interval, Row, SweepRecord
from manyhands.record.texts import images_name

Batch = int | Literal["full"]


@dataclass(frozen=True)
class Curve:
    """One engine and strategy over the number of workers."""

    name: str
    engine: str
    style: int
    """Which of the curves of this engine it is."""
    baseline: Row | None
    """One worker alone."""
    rows: list[Row]
    """Rows that have figures, by number of workers."""
    fits: list[Fit]
    findings: list[tuple[Row, Finding]]

    @property
    def with_baseline(self) -> list[Row]:
        """The rows, with one worker alone in front where the curve has no such row itself."""
        alone = [self.baseline] if self.baseline and self.baseline.repeats else []
        return self.rows if self.rows and self.rows[0].cell.size == 1 else [*alone, *self.rows]


def curves(record: SweepRecord) -> list[Curve]:
    """Gather the rows of a sweep into curves, in the order in which they were asked for."""
    keys = list(dict.fromkeys(_key(record, row.cell) for row in record.rows if row.cell.role == "cell"))
    batches, images = len({batch for _, batch, _ in keys}) > 1, len({image for *_, image in keys}) > 1
    styles: dict[str, int] = {}
    found = []
    for key in keys:
        series, batch, image = key
        rows = [r for r in record.rows if r.cell.role == "cell" and r.repeats and _key(record, r.cell) == key]
        engine = next(r.cell.engine for r in record.rows if r.cell.role == "cell" and _key(record, r.cell) == key)
        styles[engine] = styles.get(engine, -1) + 1
        names = [series, *([f"batch {batch}"] if batches else []), *([images_name(image)] if images else [])]
        rows.sort(key=lambda r: r.cell.size)
        fits = [f for f in record.fits if (f.series, f.batch_size, f.image_size) == key]
        findings = [(row, f) for row in rows for f in record.findings if f.row == row.cell.key]
        baseline = _baseline(record, batch, image)
        found.append(Curve(", ".join(names), engine, styles[engine], baseline, rows, fits, findings))
    return found


def _key(record: SweepRecord, cell: Cell) -> tuple[str, Batch, int]:
    """Say which curve a cell belongs to: its series, its baseline's batch, its images."""
    batch: Batch = cell.batch_size
    if record.kind == "weak" and isinstance(batch, int):
        batch //= cell.size
    return cell.series, batch, cell.image_size


def _baseline(record: SweepRecord, batch: Batch, image: int) -> Row | None:
    alone = (r for r in record.rows if r.cell.role == "baseline")
    return next((r for r in alone if (r.cell.batch_size, r.cell.image_size) == (batch, image)), None)


def reach(intervals: Iterable[Interval], factor: float) -> tuple[list[float], list[float]]:
    """Return how far intervals reach below and above their values, as bars are drawn: never less than nothing."""
    found = list(intervals)
    below = [max(0.0, factor * (each.value - each.low)) * each.is_shown for each in found]
    return below, [max(0.0, factor * (each.high - each.value)) * each.is_shown for each in found]


def fitted_speed_up(fit: Fit, workers: float) -> float:
    """Return the speed-up that a law tells for so many workers."""
    value = {name: interval.value for name, interval in fit.parameters.items()}
    n = workers
    if fit.law == "amdahl":
        return 1 / max(1e-12, value["serial"] + (1 - value["serial"]) / n)
    if fit.law == "gustafson":
        return n - value["serial"] * (n - 1)
    slower = 1 + value["contention"] * (n - 1) + value["coherency"] * n * (n - 1)
    return n / max(1e-12, slower)
