"""The tables of runs: a list of all stored runs, some runs side by side, and every rank's time."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from manyhands.record.run import RankRecord, RunDir, RunRecord
from manyhands.record.status import status_of
from manyhands.record.texts import (
    NOTHING,
    accuracy_text,
    duration,
    figure,
    fixed,
    num_bytes,
    plain,
    rate,
    share,
    times,
    workers_name,
)
from manyhands.report.stacks import PARTS as PART_NAMES
from manyhands.report.stacks import parts_ms
from manyhands.report.tables.table import Column, Table, attribute, fields, numbers, tabulate
from manyhands.report.words import task_name


def run_names(records: Sequence[RunRecord]) -> list[str]:
    """Return the runs' names: engine, workers and strategy, with task and id where these are the same."""
    short = []
    for record in records:
        name = workers_name(record.engine, record.workers, record.threads)
        short.append(name if record.sync == "allreduce" else f"{name} {record.sync}")
    if len({record.task for record in records}) > 1:
        short = [f"{task_name(record.task)} {name}" for record, name in zip(records, short, strict=True)]
    counts = Counter(short)
    return [name if counts[name] == 1 else f"{name} ({r.id[-4:]})" for name, r in zip(short, records, strict=True)]


def rank_parts_s(rank: RankRecord) -> dict[str, float]:
    """Return the seconds of a rank's training by part."""
    compute_s = max(0.0, rank.compute_s - rank.serial_s)
    return {"compute": compute_s, "serial": rank.serial_s, "comm": rank.comm_s, "wait": rank.wait_s}


def _train_loss(record: RunRecord) -> float | None:
    return record.train_loss[-1] if record.train_loss else None


def _part(part: str) -> Column[RunRecord]:
    """Return the column of a part's share of a warmed-up step."""
    return Column(
        part,
        lambda r: share(parts_ms(r.steady)[part], sum(parts_ms(r.steady).values())),
        csv=f"steady_{part}_ms",
        number=lambda r: parts_ms(r.steady)[part],
    )


def _part_of_training(part: str, drop: int) -> Column[RunRecord]:
    """Return the column of a part's share of the whole training; the spreadsheet's `compute_s` includes `data_s`."""

    def shown(r: RunRecord) -> str:
        seconds = r.compute_s - r.data_s if part == "compute" else getattr(r, f"{part}_s")
        return share(seconds, r.compute_s + r.comm_s + r.wait_s)

    return Column(part, shown, drop=drop, csv=f"{part}_s")


SHORT_NAME: Column[RunRecord] = Column("run", lambda r: workers_name(r.engine, r.workers, r.threads), left=True)
ID = attribute("id", "id", str, drop=9, left=True)
RATE = attribute("samples_per_s", "samples/s", rate, number=lambda r: r.samples_per_s or None)
STEP = attribute(
    "step_ms_median",
    "time per batch",
    lambda ms: duration(ms / 1e3 or None),
    number=attrgetter("step_ms.median"),
)
PARTS = [_part(part) for part in PART_NAMES]
PARTS_OF_TRAINING = [
    _part_of_training(part, drop) for part, drop in (("compute", 7), ("data", 8), ("comm", 6), ("wait", 5))
]
MEMORY: Column[RunRecord] = Column(
    "memory/rank", lambda r: num_bytes(max((rank.max_rss_bytes for rank in r.ranks), default=None))
)
TOTAL = attribute("total_s", "total", duration, drop=2)
BATCH = attribute("batch_size", "batch", plain)
STEPS = attribute("steps", "steps", plain, drop=1)
TRAIN_LOSS = attribute("train_loss", "train loss", lambda loss: fixed(loss, 4), drop=4, number=_train_loss)
TEST_LOSS = attribute("test_loss", "test loss", lambda loss: fixed(loss, 4), drop=3)
ACCURACY = attribute("test_accuracy", "accuracy", accuracy_text)
WEIGHTS = attribute("weights_sha256", "weights", lambda digest: digest[:12], left=True)


def quality(record: RunRecord) -> tuple[str, str]:
    """Return the figure that tells best what was learned: accuracy, the first metric, or the loss on the test data."""
    if record.test_accuracy is not None:
        return "accuracy", accuracy_text(record.test_accuracy)
    return next(((name, figure(v, 4)) for name, v in record.metrics.items()), ("test loss", fixed(record.test_loss, 4)))


def _metrics(records: Sequence[RunRecord]) -> list[Column[RunRecord]]:
    """Return a column for each metric of the runs."""
    return [_metric(name) for name in dict.fromkeys(name for record in records for name in record.metrics)]


def _scores(records: Sequence[RunRecord]) -> list[Column[RunRecord]]:
    """Return the columns of the runs' accuracies, if one has such, and metrics."""
    return [*([] if all(r.test_accuracy is None for r in records) else [ACCURACY]), *_metrics(records)]


def _metric(name: str) -> Column[RunRecord]:
    def value(record: RunRecord) -> float | None:
        return record.metrics.get(name)

    def text(record: RunRecord) -> str:
        return NOTHING if (number := value(record)) is None else figure(number, 4)

    return Column(name, text, csv=name, number=value)


def _names(records: Sequence[RunRecord]) -> Column[RunRecord]:
    """Return the column of names that tell the runs apart; with ‡ where a run was stopped."""
    names = {id(record): name for record, name in zip(records, run_names(records), strict=True)}
    return Column("run", lambda r: f"{names[id(r)]}{' ‡' if r.status == 'interrupted' else ''}", left=True)


def speed_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of the runs' speed."""
    return tabulate(
        [_names(records), RATE, STEP, *PARTS, MEMORY, TOTAL], records, "Speed, and where a step's time goes"
    )


def learned_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of the runs' losses, accuracies and weights."""
    columns = [_names(records), BATCH, STEPS, TRAIN_LOSS, TEST_LOSS, *_scores(records), WEIGHTS]
    return tabulate(columns, records, "What was learned")


def numbers_table(records: Sequence[RunRecord]) -> Table:
    """Return the spreadsheet of some runs: all numbers in full precision, with the units in the headings."""
    columns: list[Column[Any]] = [
        *(ID, *fields("status", "task", "engine", "sync", "workers", "threads"), BATCH, *fields("epochs"), STEPS),
        *(*fields("seed", "device", "parameters", "samples"), RATE, TEST_LOSS, ACCURACY, *_metrics(records)),
        *PARTS_OF_TRAINING,
        *(*fields("read_s", "eval_s"), TOTAL, *fields("bytes_sent", "messages"), WEIGHTS, TRAIN_LOSS, STEP),
        Column(csv="step_ms_p90", number=lambda r: r.step_ms.p90),
        *PARTS,
    ]
    return numbers(columns, records)


def compared_table(
    records: Sequence[RunRecord], *, baseline: RunRecord | None = None, ids: bool = False, caption: str = ""
) -> Table:
    """Return the table of some runs side by side; with a baseline, their speed-up over it."""

    def speed_up(record: RunRecord) -> str:
        timed = baseline is not None and baseline.samples_per_s and record.samples_per_s
        return times(record.samples_per_s / baseline.samples_per_s if baseline and timed else None)

    columns = [
        *(SHORT_NAME, *([ID] if ids else []), RATE, *([Column("speed-up", speed_up)] if baseline else [])),
        *(TRAIN_LOSS, TEST_LOSS, *_scores(records), *PARTS_OF_TRAINING, TOTAL),
    ]
    return tabulate(columns, records, caption)


def answers_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of runs that should have given the same answer."""
    train_loss = attribute("train_loss", "train loss", lambda loss: fixed(loss, 7), number=_train_loss)
    test_loss = attribute("test_loss", "test loss", lambda loss: fixed(loss, 7))
    return tabulate([SHORT_NAME, STEPS, train_loss, test_loss, *_scores(records), WEIGHTS], records)


def list_table(runs: Sequence[RunDir]) -> Table:
    """Return the table of stored runs, with dashes for a run without a record."""
    records = {run.path: run.read_or_none() for run in runs}

    def recorded(heading: str, write: Callable[[RunRecord], str], **options: Any) -> Column[RunDir]:
        return attribute("", heading, write, number=lambda run: records[run.path], **options)

    columns: list[Column[RunDir]] = [
        Column("id", lambda run: record.id if (record := records[run.path]) else run.path.name, left=True),
        Column("date", _date, drop=7, left=True),
        recorded("task", lambda r: task_name(r.task), drop=6, left=True),
        Column("status", lambda run: status_of(run).word, left=True),
        recorded("workers", lambda r: workers_name(r.engine, r.workers, r.threads), drop=4, left=True),
        recorded("sync", lambda r: r.sync, drop=5, left=True),
        recorded("steps", lambda r: plain(r.steps), drop=2),
        recorded("accuracy", lambda r: accuracy_text(r.test_accuracy)),
        recorded("samples/s", lambda r: rate(r.samples_per_s), drop=1),
    ]
    return tabulate(columns, runs)


def _date(run: RunDir) -> str:
    """Return when a run began: by its id, or else when its settings were written."""
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
    """Return the column of a part's time; a dash where no time passed, as on virtual clocks that stand still."""

    def text(row: NamedRank) -> str:
        parts = rank_parts_s(row.rank)
        return duration(parts[part] if sum(parts.values()) > 0 else None)

    return Column(part, text, drop=drop)


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
        lambda row: ", ".join(f"{name} {plain(value)}" for name, value in row.rank.notes.items()),
        left=True,
        folds=True,
        shown=lambda rows: any(row.rank.notes for row in rows),
    ),
)


def ranks_table(records: Sequence[RunRecord]) -> Table:
    """Return the table of every rank's time and memory; with the names of the runs where they are several."""
    names = run_names(records) if len(records) > 1 else [""]
    rows = [NamedRank(name, rank) for record, name in zip(records, names, strict=True) for rank in record.ranks]
    return tabulate(RANKS, rows, "Every rank's time in training, and its memory")
