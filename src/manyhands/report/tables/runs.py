"""The tables of runs: the list of all that are stored, some side by side, and every rank's time."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.record import Cell, RankRecord, RunDir, RunRecord
from manyhands.record.labels import cell_name
from manyhands.record.status import status_of
from manyhands.record.texts import (
    NOTHING,
    duration,
    fixed,
    num_bytes,
    percent,
    plain,
    rate,
    share,
    times,
    workers_name,
)
from manyhands.report.tables.table import Column, Table, fields, numbers, tabulate
from manyhands.report.words import task_name


def run_names(records: Sequence[RunRecord]) -> list[str]:
    """Name runs by engine, workers and strategy; also by task and id where that is not enough."""
    short = [_name(record) for record in records]
    if len({record.task for record in records}) > 1:
        short = [f"{task_name(record.task)} {name}" for record, name in zip(records, short, strict=True)]
    seen = Counter(short)
    return [name if seen[name] == 1 else f"{name} ({r.id[-4:]})" for name, r in zip(short, records, strict=True)]


def _name(record: RunRecord) -> str:
    return cell_name(
        Cell(
            engine=record.engine,
            workers=record.workers,
            threads=record.threads,
            sync=record.sync,
            batch_size=record.batch_size,
        )
    )


def parts_ms(record: RunRecord) -> dict[str, float]:
    """Return the parts of a warmed-up step."""
    s = record.steady
    return {"compute": s.compute_ms, "serial": s.serial_ms, "comm": s.comm_ms, "wait": s.wait_ms}


def rank_parts_s(rank: RankRecord) -> dict[str, float]:
    """Return the parts of a rank's time in training."""
    compute_s = max(0.0, rank.compute_s - rank.serial_s)
    return {"compute": compute_s, "serial": rank.serial_s, "comm": rank.comm_s, "wait": rank.wait_s}


def _train_loss(record: RunRecord) -> float | None:
    return record.train_loss[-1] if record.train_loss else None


def _part(part: str) -> Column[RunRecord]:
    """Return the column of a part's share of a warmed-up step."""
    return Column(
        part,
        lambda r: share(parts_ms(r)[part], sum(parts_ms(r).values())),
        csv=f"steady_{part}_ms",
        number=lambda r: parts_ms(r)[part],
    )


def _part_of_training(part: str, drop: int) -> Column[RunRecord]:
    """Return the column of a part's share of the whole training."""
    return Column(
        part, lambda r: share(getattr(r, f"{part}_s"), r.compute_s + r.comm_s + r.wait_s), drop=drop, csv=f"{part}_s"
    )


SHORT_NAME: Column[RunRecord] = Column("run", lambda r: workers_name(r.engine, r.workers, r.threads), left=True)
ID: Column[RunRecord] = Column("id", lambda r: r.id, drop=9, left=True, csv="id")
RATE: Column[RunRecord] = Column(
    "samples/s", lambda r: rate(r.samples_per_s), csv="samples_per_s", number=lambda r: r.samples_per_s or None
)
STEP: Column[RunRecord] = Column(
    "time per batch",
    lambda r: duration(r.step_ms.median / 1e3 or None),
    csv="step_ms_median",
    number=lambda r: r.step_ms.median,
)
PARTS = [_part(part) for part in ("compute", "serial", "comm", "wait")]
PARTS_OF_TRAINING = [_part_of_training(part, drop) for part, drop in (("compute", 7), ("comm", 6), ("wait", 5))]
MEMORY: Column[RunRecord] = Column(
    "memory/rank", lambda r: num_bytes(max((rank.max_rss_bytes for rank in r.ranks), default=None))
)
TOTAL: Column[RunRecord] = Column("total", lambda r: duration(r.total_s), drop=2, csv="total_s")
BATCH: Column[RunRecord] = Column("batch", lambda r: f"{r.batch_size:,}", csv="batch_size")
STEPS: Column[RunRecord] = Column("steps", lambda r: f"{r.steps:,}", drop=1, csv="steps")
TRAIN_LOSS: Column[RunRecord] = Column(
    "train loss", lambda r: fixed(_train_loss(r), 4), drop=4, csv="train_loss", number=_train_loss
)
TEST_LOSS: Column[RunRecord] = Column("test loss", lambda r: fixed(r.test_loss, 4), drop=3, csv="test_loss")
ACCURACY: Column[RunRecord] = Column("accuracy", lambda r: percent(100 * r.test_accuracy, 2), csv="test_accuracy")
WEIGHTS: Column[RunRecord] = Column("weights", lambda r: r.weights_sha256[:12], left=True, csv="weights_sha256")


def _names(records: Sequence[RunRecord]) -> Column[RunRecord]:
    """Return the column of names that tell these runs apart; ‡ where a run was stopped."""
    names = {id(record): name for record, name in zip(records, run_names(records), strict=True)}
    return Column("run", lambda r: f"{names[id(r)]}{' ‡' if r.status == 'interrupted' else ''}", left=True)


def speed_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of how fast some runs are."""
    columns = [_names(records), RATE, STEP, *PARTS, MEMORY, TOTAL]
    return tabulate(columns, records, "Speed, and where a step's time goes")


def learned_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of what some runs learned."""
    columns = [_names(records), BATCH, STEPS, TRAIN_LOSS, TEST_LOSS, ACCURACY, WEIGHTS]
    return tabulate(columns, records, "What was learned")


def numbers_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of some runs as plain numbers in full precision, with the units in the headings."""
    columns: list[Column[Any]] = [
        *(ID, *fields("status", "task", "engine", "sync", "workers", "threads"), BATCH, *fields("epochs"), STEPS),
        *(*fields("seed", "device", "parameters", "samples"), RATE, TEST_LOSS, ACCURACY, *PARTS_OF_TRAINING),
        *(*fields("read_s", "eval_s"), TOTAL, *fields("bytes_sent", "messages"), WEIGHTS, TRAIN_LOSS, STEP),
        Column(csv="step_ms_p90", number=lambda r: r.step_ms.p90),
        *PARTS,
    ]
    return numbers(columns, records)


def compared_table(
    records: Sequence[RunRecord], *, baseline: RunRecord | None = None, ids: bool = False, caption: str = ""
) -> Table:
    """Return the table of some runs for a terminal; with a baseline, their speed-up over it."""

    def speed_up(record: RunRecord) -> str:
        timed = baseline is not None and baseline.samples_per_s and record.samples_per_s
        return times(record.samples_per_s / baseline.samples_per_s if baseline and timed else None)

    columns = [
        *(SHORT_NAME, *([ID] if ids else []), RATE, *([Column("speed-up", speed_up)] if baseline else [])),
        *(TRAIN_LOSS, TEST_LOSS, ACCURACY, *PARTS_OF_TRAINING, TOTAL),
    ]
    return tabulate(columns, records, caption)


def answers_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of runs that should have given the same answer."""
    train_loss: Column[RunRecord] = Column("train loss", lambda r: fixed(_train_loss(r), 7))
    test_loss: Column[RunRecord] = Column("test loss", lambda r: fixed(r.test_loss, 7))
    columns = [SHORT_NAME, STEPS, train_loss, test_loss, ACCURACY, WEIGHTS]
    return tabulate(columns, records)


class StoredRun(NamedTuple):
    """A run's folder, and its record where it has one."""

    folder: RunDir
    record: RunRecord | None


def _kept(text: Callable[[RunRecord], str]) -> Callable[[StoredRun], str]:
    """Return what writes a text of a record, or nothing for a run without one."""
    return lambda run: text(run.record) if run.record else NOTHING


STORED: tuple[Column[StoredRun], ...] = (
    Column("id", lambda run: run.record.id if run.record else run.folder.path.name, left=True),
    Column("date", lambda run: _date(run.folder), drop=7, left=True),
    Column("task", _kept(lambda r: Path(r.task).name), drop=6, left=True),
    Column("status", lambda run: status_of(run.folder).word, left=True),
    Column("workers", _kept(lambda r: workers_name(r.engine, r.workers, r.threads)), drop=4, left=True),
    Column("sync", _kept(lambda r: r.sync), drop=5, left=True),
    Column("steps", _kept(lambda r: f"{r.steps:,}"), drop=2),
    Column("accuracy", _kept(lambda r: percent(100 * r.test_accuracy, 2))),
    Column("samples/s", _kept(lambda r: rate(r.samples_per_s)), drop=1),
)


def list_table(runs: Sequence[RunDir]) -> Table:
    """Return the table of stored runs."""
    return tabulate(STORED, [StoredRun(run, run.read_or_none()) for run in runs])


def _date(run: RunDir) -> str:
    """Return when a run began, as its id says; of one with a name of its own, when its settings were written."""
    try:
        moment = datetime.strptime(run.path.name[:15], "%Y%m%d-%H%M%S")
    except ValueError:
        moment = datetime.fromtimestamp(run.toml.stat().st_mtime)
    return f"{moment:%Y-%m-%d %H:%M}"


class NamedRank(NamedTuple):
    """A rank, and the name of its run."""

    run: str
    rank: RankRecord


def _part_of_rank(part: str, drop: int = 0) -> Column[NamedRank]:
    """Return the column of a part's time; nothing where none passed, as on virtual clocks that stand still."""

    def text(row: NamedRank) -> str:
        parts = rank_parts_s(row.rank)
        return duration(parts[part] if sum(parts.values()) > 0 else None)

    return Column(part, text, drop=drop)


def _notes(row: NamedRank) -> str:
    return ", ".join(f"{name} {plain(value)}" for name, value in row.rank.notes.items())


RANKS: tuple[Column[NamedRank], ...] = (
    Column("run", lambda row: row.run, left=True, shown=lambda rows: any(row.run for row in rows)),
    Column("rank", lambda row: str(row.rank.rank)),
    Column("role", lambda row: row.rank.role, drop=2, left=True),
    Column("host", lambda row: row.rank.host, drop=3, left=True),
    _part_of_rank("compute"),
    _part_of_rank("serial", drop=1),
    _part_of_rank("comm"),
    _part_of_rank("wait"),
    Column("memory", lambda row: num_bytes(row.rank.max_rss_bytes), drop=1),
    Column(
        "notes",
        _notes,
        left=True,
        folds=True,
        shown=lambda rows: any(row.rank.notes for row in rows),
    ),
)


def ranks_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of every rank's time in training, and its memory; without the run's name where it is one."""
    names = run_names(records) if len(records) > 1 else [""]
    rows = [NamedRank(name, rank) for record, name in zip(records, names, strict=True) for rank in record.ranks]
    return tabulate(RANKS, rows, "Every rank's time in training, and its memory")
