"""The tables of a simulation: how fast, where a step's time goes, and what was trained in what time."""

from collections.abc import Callable, Sequence

from manyhands.record.simulation import Counted, SimulationRecord, SimulationRow, TrainedRow
from manyhands.record.texts import (
    NOTHING,
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
from manyhands.report.tables.table import Column, Table, estimated, fields, numbers, tabulate
from manyhands.report.trained import level_name, levels, time_to

SYNC: Column[SimulationRow | TrainedRow] = Column("sync", lambda row: row.sync, left=True, csv="sync")
FAILURES: Column[SimulationRow] = Column(
    "failures",
    lambda row: figure(row.failures),
    "Expected in an epoch",
    drop=4,
    shown=lambda rows: any(row.failures for row in rows),
    csv="failures",
)


def _speed(record: SimulationRecord) -> list[Column[SimulationRow]]:
    """Return the columns of how fast it would be, but for the failures."""
    by_workers = record.by == "workers"
    of_workers = "Of which a node may have several; a star where a formula was used"
    of_nodes = "A star where a formula was used; the others come from following events"
    return [
        SYNC,
        Column(record.by, _number, of_workers if by_workers else of_nodes),
        Column(
            "nodes",
            lambda row: f"{row.nodes:,}",
            shown=lambda rows: by_workers and any(1 < row.nodes != row.workers for row in rows),
            csv="nodes",
        ),
        Column(
            "ranks",
            lambda row: f"{row.workers:,}" + (f"+{row.servers}" if row.servers else ""),
            "Workers, and servers behind the plus",
            drop=6,
            shown=lambda rows: any(row.workers != row.number or row.servers for row in rows),
        ),
        *fields("workers", "servers"),
        Column("batch", _batch, "Global batch: samples of one step over all workers", drop=5, csv="batch_size"),
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
        estimated("efficiency", "efficiency", figure_percent, "Speed-up as a share of the workers", drop=2),
        estimated("cost", f"{record.currency} an epoch", figure, drop=1),
    ]


def _split() -> list[Column[SimulationRow]]:
    """Return the columns of a step's parts: shares for people, milliseconds for spreadsheets."""

    def share_of(part: str) -> Callable[[SimulationRow], str]:
        return lambda row: percent(shares(row)[part])

    return [Column(name, share_of(part), csv=f"{part}_ms") for part, name in PART_NAMES.items()]


def _number(row: SimulationRow) -> str:
    return f"{row.number:,}{'*' if row.method == 'closed form' else ''}"


def _batch(row: SimulationRow | TrainedRow) -> str:
    return f"{row.batch_size:,}"


def speed_table(record: SimulationRecord, rows: Sequence[SimulationRow]) -> Table:
    """Return the table of how fast it would be."""
    return tabulate([*_speed(record), FAILURES], rows, "How fast")


def split_table(record: SimulationRecord, rows: Sequence[SimulationRow]) -> Table:
    """Return the table of where a step's time goes."""
    return tabulate([*_speed(record)[:2], *_split()], rows, "Where a step's time goes")


def numbers_table(record: SimulationRecord) -> Table:
    """Return the table as plain numbers in full precision, with the units in the headings."""
    return numbers([*_speed(record), *_split(), FAILURES], record.rows)


BATCH: Column[TrainedRow] = Column("batch", _batch, drop=4)
LR: Column[TrainedRow] = Column("learning rate", lambda row: f"{row.lr:g}", drop=5)
EPOCHS: Column[TrainedRow] = Column("epochs", lambda row: plain(row.epochs), drop=3)
ACCURACY: Column[TrainedRow] = Column("accuracy", lambda row: percent(100 * row.test_accuracy, 2))
TEST_LOSS: Column[TrainedRow] = Column("test loss", lambda row: fixed(row.test_loss, 4), drop=2)
TIME = estimated("time_s", "all epochs", duration)
STALENESS: Column[TrainedRow] = Column(
    "staleness",
    lambda row: f"{row.staleness['mean']:.1f}, max {row.staleness['max']:.0f}" if row.staleness else NOTHING,
    "How many updates old gradients were: on average, and at the most",
    drop=6,
    shown=lambda rows: any(row.staleness for row in rows),
)


def _who(record: SimulationRecord) -> list[Column[TrainedRow]]:
    return [SYNC, Column(record.by, _plain_number)]


def _plain_number(row: Counted) -> str:
    return f"{row.number:,}"


def _time_to(record: SimulationRecord, level: float) -> Column[TrainedRow]:
    """Return the column of the time to an accuracy; with bounds only where it was asked for, or it were too wide."""

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
    """Return the table of the time to some accuracies."""
    to_levels = [_time_to(record, level) for level in levels(record)]
    failures = ", with failures" if any(row.failures for row in record.rows) else ""
    columns = [*_who(record), *to_levels, _target_cost(record), TIME, ACCURACY]
    return tabulate(columns, record.trained, f"How long until which accuracy{failures}")


def learned_table(record: SimulationRecord) -> Table:
    """Return the table of how the trainings were done, and what came out."""
    columns: list[Column[TrainedRow]] = [
        *(*_who(record), BATCH, LR, EPOCHS, Column("steps", lambda row: f"{row.steps:,}"), TEST_LOSS, ACCURACY),
        Column("weights", lambda row: row.weights_sha256[:12], left=True),
        Column("took here", lambda row: duration(row.wall_s)),
    ]
    return tabulate(columns, record.trained, "What was learned")


def trained_table(record: SimulationRecord) -> Table:
    """Return the table of all trainings for a terminal; its caption has the settings that are the same for all."""
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
        Column("computed", lambda row: row.method, drop=7, left=True),
    ]
    return tabulate(columns, record.trained, f"trained: {', '.join(same)}" if same else "trained")
