"""The table of a sweep's predictions, for rows that could not be measured; apart from the measured rows."""

from manyhands.record.labels import cell_names, coverage, duration_with_span, with_span
from manyhands.record.sweep import PredictedRow, SweepRecord
from manyhands.record.texts import percent, rate, times
from manyhands.report.tables.table import Column, Table, one_line, tabulate

CAPTION = "Predicted, not measured: a machine like this one with a core for each rank"


def predictions_table(record: SweepRecord) -> Table:
    """Return the table of the predictions, without rows where there are none."""
    rows = record.predictions.rows
    names = cell_names([*(row.cell for row in record.rows), *(row.cell for row in rows)])
    columns: list[Column[PredictedRow]] = [
        Column("predicted run", lambda row: names[row.cell.key], left=True),
        Column("ranks", lambda row: f"{row.ranks}", "Workers and servers.", drop=4),
        Column("time per batch", lambda row: duration_with_span(row.step_ms), drop=2),
        Column("samples/s", lambda row: rate(row.samples_per_s.value), drop=3),
        Column("speed-up", lambda row: with_span(times(row.speed_up.value), row.speed_up)),
        Column(
            "efficiency", lambda row: with_span(percent(100 * row.efficiency.value, 0), row.efficiency, 100, 0), drop=1
        ),
        Column("why not measured", lambda row: one_line(row.why), drop=5, left=True, folds=True),
    ]
    return tabulate(columns, rows, CAPTION if rows else "")


def prediction_notes(record: SweepRecord) -> list[str]:
    """Say what the predictions come from and how often their intervals should hold; or why there are none."""
    predictions = record.predictions
    if not predictions.rows:
        return list(predictions.notes)
    holds = coverage(predictions.rows[0].speed_up)
    said = f"predicted, not measured, from {predictions.source}; intervals should hold {holds} of runs"
    return [f"{said}; no law is fitted to them", *predictions.notes]
