"""The tables of a simulation: speed, where a step's time goes, and trainings with their time to some accuracies."""

from collections.abc import Sequence

from manyhands.record.simulation import SimulationRecord, SimulationRow, TrainedRow
from manyhands.record.texts import (
    NOTHING,
    accuracy_text,
    duration,
    factor,
    figure,
    figure_percent,
    fixed,
    milliseconds,
    percent,
    plain,
    with_bounds,
)
from manyhands.report.simulation_figures import PART_NAMES, shares
from manyhands.report.tables.table import Column, Table, attribute, estimated, fields, numbers, tabulate
from manyhands.report.trained import level_name, levels, time_to

SYNC = attribute("sync", "sync", str, left=True)
FAILURES = attribute(
    "failures",
    "failures",
    figure,
    "Expected in an epoch",
    drop=4,
    shown=lambda rows: any(row.failures for row in rows),
)


def _speed(record: SimulationRecord) -> list[Column[SimulationRow]]:
    """Return the columns of predicted speed and cost, without the failures."""
    by_workers = record.by == "workers"
    of_workers = "Of which a node may have several; a star where a formula was used"
    of_nodes = "A star where a formula was used; the others come from following events"
    return [
        SYNC,
        Column(
            record.by,
            lambda row: f"{row.number:,}{'*' if row.method == 'closed form' else ''}",
            of_workers if by_workers else of_nodes,
        ),
        attribute(
            "nodes",
            "nodes",
            plain,
            shown=lambda rows: by_workers and any(1 < row.nodes != row.workers for row in rows),
        ),
        Column(
            "ranks",
            lambda row: f"{row.workers:,}" + (f"+{row.servers}" if row.servers else ""),
            "Workers, and servers behind the plus",
            drop=6,
            shown=lambda rows: any(row.workers != row.number or row.servers for row in rows),
        ),
        *fields("workers", "servers"),
        attribute("batch_size", "batch", plain, "Global batch: samples of one step over all workers", drop=5),
        *fields("method"),
        estimated("step_ms", "step", milliseconds, "Time of one step, with its 90 % interval"),
        estimated(
            "epoch_s",
            "epoch",
            duration,
            "Time in which every sample is seen once, with failures where the cluster has some",
            drop=3,
        ),
        estimated("speed_up", "speed-up", factor, "Samples per second against one worker alone"),
        estimated(
            "efficiency", "efficiency", figure_percent, "Speed-up as a share of the ranks, servers included", drop=2
        ),
        estimated("cost", f"{record.currency} an epoch", figure, drop=1),
    ]


def _part(part: str, name: str) -> Column[SimulationRow]:
    """Return the column of a step's part: its share for people, milliseconds for spreadsheets."""
    return Column(name, lambda row: percent(shares(row)[part]), csv=f"{part}_ms")


SPLIT = [_part(part, name) for part, name in PART_NAMES.items()]


def speed_table(record: SimulationRecord, rows: Sequence[SimulationRow]) -> Table:
    """Return the table of predicted speed and cost."""
    return tabulate([*_speed(record), FAILURES], rows, "How fast")


def split_table(record: SimulationRecord, rows: Sequence[SimulationRow]) -> Table:
    """Return the table of where a step's time goes."""
    return tabulate([*_speed(record)[:2], *SPLIT], rows, "Where a step's time goes")


def numbers_table(record: SimulationRecord) -> Table:
    """Return the spreadsheet of a simulation: all numbers in full precision, with the units in the headings."""
    return numbers([*_speed(record), *SPLIT, FAILURES], record.rows)


BATCH = attribute("batch_size", "batch", plain, drop=4)
LR = attribute("lr", "learning rate", lambda lr: f"{lr:g}", drop=5)
EPOCHS = attribute("epochs", "epochs", plain, drop=3)
ACCURACY = attribute("test_accuracy", "accuracy", accuracy_text)
TEST_LOSS = attribute("test_loss", "test loss", lambda loss: fixed(loss, 4), drop=2)
TIME = estimated("time_s", "all epochs", duration)
STALENESS = attribute(
    "staleness",
    "staleness",
    lambda updates: f"{updates['mean']:.1f}, max {updates['max']:.0f}" if updates else NOTHING,
    "How many updates old gradients were: on average, and at the most",
    optional=True,
    drop=6,
)


def _who(record: SimulationRecord) -> list[Column[TrainedRow]]:
    return [SYNC, Column(record.by, lambda row: f"{row.number:,}")]


def _time_to(record: SimulationRecord, level: float) -> Column[TrainedRow]:
    """Return the column of the time to an accuracy; with bounds for the target alone, to keep the table narrow."""
    is_target = level == record.target_accuracy

    def text(row: TrainedRow) -> str:
        time_s = time_to(row, level)
        if time_s is None:
            return "not reached" if is_target else NOTHING
        return with_bounds(time_s, duration) if is_target else duration(time_s.value)

    return Column(f"to {level_name(level)}", text)


def _target_cost(record: SimulationRecord) -> Column[TrainedRow]:
    return estimated("target_cost", f"{record.currency} to {level_name(record.target_accuracy)}", figure, drop=1)


def time_table(record: SimulationRecord) -> Table:
    """Return the table of the trainings' time to some accuracies."""
    to_levels = [_time_to(record, level) for level in levels(record)]
    failures = ", with failures" if any(row.failures for row in record.rows) else ""
    columns = [*_who(record), *to_levels, _target_cost(record), TIME, ACCURACY]
    return tabulate(columns, record.trained, f"How long until which accuracy{failures}")


def learned_table(record: SimulationRecord) -> Table:
    """Return the table of the trainings' settings, losses and accuracies."""
    columns: list[Column[TrainedRow]] = [
        *(*_who(record), BATCH, LR, EPOCHS, attribute("steps", "steps", plain), TEST_LOSS, ACCURACY),
        attribute("weights_sha256", "weights", lambda digest: digest[:12], left=True),
        attribute("wall_s", "took here", duration),
    ]
    return tabulate(columns, record.trained, "What was learned")


def trained_table(record: SimulationRecord) -> Table:
    """Return one table of the trainings, for a terminal; its caption has the settings that are the same for all."""
    varying: list[Column[TrainedRow]] = []
    same = []
    for column in (EPOCHS, BATCH, LR):
        texts = [column.text(row) for row in record.trained if column.text]
        if len(set(texts)) > 1:
            varying.append(column)
        else:
            same.append(f"{column.heading} {texts[0]}")
    target = record.target_accuracy
    columns = [
        *(*_who(record), *varying, ACCURACY, TEST_LOSS, TIME),
        *([_time_to(record, target)] if target is not None else []),
        *(_target_cost(record), STALENESS),
        attribute("method", "computed", str, drop=7, left=True),
    ]
    return tabulate(columns, record.trained, f"trained: {', '.join(same)}" if same else "trained")
