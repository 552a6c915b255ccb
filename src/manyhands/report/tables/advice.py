"""The tables of advice: the best ways, and the spreadsheet of all ways."""

from manyhands.record.advice import AdvicePoint, AdviceRecord, AdviceRow
from manyhands.record.texts import NOTHING, duration, factor, figure, figure_percent, milliseconds, plain, workers_name
from manyhands.report.tables.table import Column, Table, attribute, estimated, fields, numbers, tabulate


def _columns(record: AdviceRecord) -> list[Column[AdviceRow]]:
    return [
        Column("engine", lambda row: workers_name(row.engine, row.workers), left=True),
        Column("sync", lambda row: row.sync if row.workers > 1 else NOTHING, drop=1, left=True),
        attribute("batch_size", "batch", plain, "Global batch: samples of one step over all workers"),
        attribute("lr", "learning rate", lambda lr: f"{lr:g}", drop=7),
        estimated(
            "steps",
            "steps",
            figure,
            "Until the accuracy is reached; counted in trainings, or told by the noise scale of the gradient",
            drop=4,
        ),
        estimated("step_ms", "step", milliseconds, "Time of one step", drop=5),
        estimated(
            "time_s", "time to target", duration, "Of the training alone: to start, read data and test comes on top"
        ),
        estimated(
            "speed_up", "speed-up", factor, "How many times sooner than one worker with the task's own batch", drop=3
        ),
        estimated(
            "efficiency", "efficiency", figure_percent, "Speed-up as a share of the ranks, servers included", drop=6
        ),
        estimated("cost", record.currency, figure, drop=2),
    ]


def best_table(record: AdviceRecord) -> Table:
    """Return the table of the best ways, and of one worker for comparison."""
    table = tabulate(_columns(record), [*record.best, record.alone])
    names = [*(f"{number}." for number, _ in enumerate(record.best, 1)), "one worker"]
    rows = [[name, *texts] for name, texts in zip(names, table.rows, strict=True)]
    return Table([Column("way", left=True), *table.columns], rows, "Predicted, with 90 % intervals")


def numbers_table(record: AdviceRecord) -> Table:
    """Return the spreadsheet of all ways that were looked at, with the units in the headings."""
    return numbers(fields(*AdvicePoint.model_fields), record.looked_at)
