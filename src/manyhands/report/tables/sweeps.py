"""The tables of a sweep: their columns, those of the papers first, and notes that explain their marks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from manyhands.record.labels import cell_name, cell_names, duration_with_span, unpaired_note, with_span, workers_span
from manyhands.record.sweep import Cell, Fit, Interval, Row, SweepRecord
from manyhands.record.texts import NOTHING, count, duration, figure, fixed, num_bytes, percent, plain, rate, times
from manyhands.report.stacks import PARTS as PART_NAMES
from manyhands.report.stacks import parts_ms
from manyhands.report.tables.table import Column, Table, attribute, fields, numbers, one_line, tabulate

LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
"""Names of the laws for readers."""
NO_ERROR_PCT = 1e-4
"""Fit error below which a law has as many parameters as points, so that the error says nothing."""


def _marked_name(row: Row) -> str:
    """Return a row's name, with ✗ where all runs failed, ‡ where some did, † where ranks had to share cores."""
    marks = [("✗", row.failed and not row.repeats), ("‡", row.failed and row.repeats), ("†", row.oversubscribed)]
    return " ".join([cell_name(row.cell), *(mark for mark, holds in marks if holds)])


def _karp_flatt(interval: Interval) -> str:
    if not 0 <= interval.value <= 1:  # as in records of earlier versions
        return NOTHING
    return with_span(percent(100 * interval.value), interval, 100, 1)


def _setting(csv: str, heading: str = "", write: Callable[[Any], str] | None = None, about: str = "") -> Column[Row]:
    """Return the column of a cell's field `csv`, shown where the cells differ in it."""
    read = attrgetter(f"cell.{csv}")
    return attribute(csv, heading, write, about, shown=lambda rows: len(set(map(read, rows))) > 1, number=read)


def _measured(
    csv: str, heading: str = "", write: Callable[[Any], str] | None = None, about: str = "", **options: Any
) -> Column[Row]:
    """Return the column of a measured attribute or `number`, as `attribute` does; empty where all runs failed."""
    read = options.pop("number", attrgetter(csv))
    return attribute(csv, heading, write, about, number=lambda row: read(row) if row.repeats else None, **options)


def _part(part: str, about: str, drop: int = 0) -> Column[Row]:
    """Return the column of a part's share of a step; empty where a step takes no time."""

    def share(row: Row) -> float | None:
        whole = sum(parts_ms(row).values())
        return 100 * parts_ms(row)[part] / whole if whole else None

    return _measured(f"{part}_pct", part, percent, about, number=share, drop=drop)


def _coverage(name: str) -> Column[Row]:
    """Return the spreadsheet's column of the coverage of an interval, which few repeats do not bring to 95 %."""

    def coverage_pct(row: Row) -> float | None:
        interval: Interval | None = getattr(row, name)
        return interval.coverage_pct if interval else None

    return _measured(f"{name}_coverage_pct", number=coverage_pct)


RUN: Column[Row] = Column(
    "run",
    _marked_name,
    "Engine × workers, and the strategy where it is not allreduce.",
    left=True,
    csv="run",
    number=lambda row: cell_name(row.cell),
)
WORKERS: Column[Row] = Column(
    "workers",
    lambda row: f"{row.cell.size:,}",
    "Workers that shared the work.",
    shown=lambda rows: len({row.cell.size for row in rows}) > 1,
    csv="workers",
    number=lambda row: row.cell.workers,
)
BATCH = _setting(
    "batch_size",
    "batch",
    lambda batch: "full" if batch == "full" else f"{batch:,}",
    "Samples of a step, over all workers.",
)
IMAGE = _setting("image_size", "image", lambda side: f"{side}²" if side else "as is", "Side of the images.")
DATA = _setting("replicate", "data", lambda times: f"×{times}", "How often the data was repeated.")
REPEATS = attribute("repeats", "repeats", str, "Runs that went well; figures are their medians.")
READ = _measured("read_s", "read", duration, "Time to read the data.")
STEP = _measured(
    "step_ms",
    "time per batch",
    duration_with_span,
    "Time of a step once the run had warmed up, with its interval.",
    bounds=True,
)
EPOCH = _measured("epoch_s", "per epoch", duration, "Time of a pass over the data.")
TOTAL = _measured("total_s", "total", duration, "Time of the whole run, reading and testing included.")
RATE = _measured(
    "samples_per_s",
    "samples/s",
    lambda interval: rate(interval.value),
    "Samples that the workers get through in a second, together.",
    bounds=True,
)
SPEED_UP = _measured(
    "speed_up",
    "speed-up",
    lambda interval: with_span(times(interval.value), interval),
    "How many times as fast as one worker, with its interval.",
    bounds=True,
)
SCALED = "Samples per second against those of one worker, each worker with a batch of its own, with the interval."
EFFICIENCY = _measured(
    "efficiency",
    "efficiency",
    lambda interval: with_span(percent(100 * interval.value, 0), interval, 100, 0),
    "Speed-up as a share of the ranks (workers, and servers where there are some), with its interval.",
    drop=1,
    bounds=True,
)
IMPROVEMENT = _measured(
    "improvement_pct",
    "PI",
    lambda value: percent(value) if value >= 0 else NOTHING,
    "Performance improvement: time saved as a share of one worker's, (T1 − Tn) / T1; none where nothing was saved.",
    drop=8,
)
KARP_FLATT = _measured(
    "karp_flatt",
    "Karp–Flatt",
    _karp_flatt,
    "Share of the work that would have to be serial to explain the speed-up of a strong sweep, with its interval.",
    optional=True,
    bounds=True,
)
PARTS = (
    _part("compute", "Forward and backward pass, which the workers share out."),
    _part("serial", "What every worker repeats: the optimiser's step and the loop around it.", drop=4),
    _part("comm", "What the exchanges themselves took."),
    _part("wait", "Waiting for the slowest worker.", drop=2),
)
SENT = _measured("bytes_per_step", "sent/step", num_bytes, "Bytes that leave the ranks in a step, summed.", drop=7)
MESSAGES = _measured("messages_per_step", "messages/step", plain, "Calls that exchange something in a step, summed.")
MEMORY = _measured("max_rss_bytes", "memory/rank", num_bytes, "Memory of the rank that took the most.")
ENERGY = _measured(
    "energy_j",
    "energy",
    lambda joules: f"{figure(joules)} J",
    "What the machine used during a run, as its counters tell.",
    optional=True,
)
TRAIN_LOSS = _measured(
    "train_loss", "train loss", lambda loss: fixed(loss, 4), "Mean loss over the last epoch of training."
)
TEST_LOSS = _measured("test_loss", "test loss", lambda loss: fixed(loss, 4), "Loss on data that was not trained on.")
ACCURACY = _measured(
    "test_accuracy",
    "accuracy",
    lambda share: percent(100 * share, 2),
    "Share of the test data that is guessed right.",
    drop=6,
)

EVERYTHING = (
    *(RUN, _setting("role"), _setting("engine"), WORKERS, _setting("threads"), _setting("sync")),
    *(*fields("ranks"), BATCH, IMAGE, DATA, REPEATS, *fields("oversubscribed", "failed")),
    *(READ, STEP, EPOCH, _measured("eval_s"), TOTAL, RATE, _coverage("step_ms"), SPEED_UP, _coverage("speed_up")),
    *(*fields("unpaired"), EFFICIENCY, IMPROVEMENT),
    *(TRAIN_LOSS, TEST_LOSS, ACCURACY, *(_measured(f"{part}_ms") for part in PART_NAMES)),
    *(*PARTS, SENT, MESSAGES, KARP_FLATT, MEMORY, ENERGY),
)
"""All columns, those of the papers first; some are for spreadsheets alone."""

WHO = (RUN, BATCH, IMAGE, DATA)
"""Columns that tell the rows apart."""

ON_TERMINAL = {
    "how fast": (*WHO, RATE, SPEED_UP, EFFICIENCY, IMPROVEMENT, ACCURACY),
    "where a step's time goes": (*WHO, STEP, *PARTS, SENT),
}
"""Narrow tables, by their captions."""
ON_PAGE = {
    "Speed": (*WHO, STEP, EPOCH, RATE, SPEED_UP, EFFICIENCY, IMPROVEMENT, KARP_FLATT),
    "Where a step's time goes": (*WHO, *PARTS, SENT, MESSAGES, MEMORY, ENERGY),
    "What was learned": (*WHO, REPEATS, READ, TOTAL, TRAIN_LOSS, TEST_LOSS, ACCURACY),
}
"""Tables of the page, by their captions, which together have all columns."""


def scaling_table(record: SweepRecord, columns: Sequence[Column[Row]] = EVERYTHING, caption: str = "") -> Table:
    """Return a table of a sweep, without columns that say nothing; `notes` explains its marks."""

    def mark(row: Row) -> str:
        return "failed" if not row.repeats else "shared" if row.oversubscribed else ""

    return tabulate(_of_kind(record, columns), record.rows, caption, mark)


def _of_kind(record: SweepRecord, columns: Sequence[Column[Row]]) -> list[Column[Row]]:
    """Return the columns that are right for the kind of sweep: Karp–Flatt supposes a problem of constant size."""
    if record.kind == "strong":
        return list(columns)
    scaled = replace(SPEED_UP, heading="scaled speed-up", about=SCALED)
    return [scaled if column is SPEED_UP else column for column in columns if column is not KARP_FLATT]


def scaling_tables(record: SweepRecord, chosen: dict[str, tuple[Column[Row], ...]]) -> list[Table]:
    """Return the tables of `ON_TERMINAL` or `ON_PAGE`."""
    return [scaling_table(record, columns, caption) for caption, columns in chosen.items()]


def numbers_table(record: SweepRecord) -> Table:
    """Return the spreadsheet of a sweep: all numbers in full precision, with the units in the headings."""
    return numbers(_of_kind(record, EVERYTHING), record.rows)


def fits_table(record: SweepRecord) -> Table:
    """Return the table of the fitted laws, a line each."""
    return tabulate(FITS, record.fits, "Laws of scaling fitted to each curve")


def _several_sizes(fits: Sequence[Fit]) -> bool:
    return len({(fit.batch_size, fit.image_size) for fit in fits}) > 1


def _fitted(fit: Fit) -> str:
    parameters = [_parameter(name, interval) for name, interval in fit.parameters.items() if name != "rate"]
    return ", ".join(parameters) if fit.describes else NOTHING


def _parameter(name: str, interval: Interval) -> str:
    decimals = 3 if name == "coherency" else 1
    return f"{name} {with_span(percent(100 * interval.value, decimals), interval, 100, decimals)}"


def _limit(fit: Fit) -> str:
    """Return the speed-up that no number of workers exceeds, which Amdahl's law alone sets directly."""
    serial = fit.parameters.get("serial")
    if fit.law != "amdahl" or serial is None or serial.value <= 0 or not fit.describes:
        return NOTHING
    return times(1 / serial.value, 1)


def _best(fit: Fit) -> str:
    best = fit.best_workers
    if best is None or not fit.describes:
        return NOTHING
    return f"{best.value:.0f}" + (f" ({workers_span(best)})" if best.low < best.high else "")


FITS: tuple[Column[Fit], ...] = (
    Column("run", lambda fit: fit.series, left=True),
    Column("batch", lambda fit: f"{fit.batch_size}", shown=_several_sizes),
    Column("image", lambda fit: f"{fit.image_size}²" if fit.image_size else "as is", shown=_several_sizes),
    Column("law", lambda fit: LAWS[fit.law], left=True),
    Column("fitted", _fitted, left=True),
    Column("at most", _limit),
    Column("best workers", _best, drop=5),
    Column("fit error", lambda fit: percent(fit.error_pct) if fit.error_pct > NO_ERROR_PCT else NOTHING, drop=3),
)
"""Columns of the table of fitted laws."""


def notes(record: SweepRecord) -> list[str]:
    """Return notes on failed runs and shared cores, which the table marks, and the record's warnings."""
    names = cell_names(row.cell for row in record.rows)
    said = [_failed_note(r.repeats, names[r.cell.key], r.failed) for r in record.rows if r.failed]
    said += [note for cell in record.cells if cell.role == "probe" and (note := _probe_note(record, cell))]
    said += [f"{names[r.cell.key]}: {unpaired_note(r)}" for r in record.rows if r.unpaired]
    if any(r.ranks > r.cell.size for r in record.rows):
        said.append("efficiency counts the cores of servers, too: speed-up / (workers + servers)")
    if any(r.oversubscribed for r in record.rows):
        cores = record.hardware.get("cores")
        have = f" than the {count(cores, 'core')} of this machine" if isinstance(cores, int) else " than cores"
        said.append(f"† more ranks{have}: such times say little about how the work scales")
    said += [f"warning: {sentence}" for sentence in record.warnings]
    said += [*record.notes, *_others_note(record)]
    if record.status == "interrupted":
        planned = len(record.cells) * record.repeats
        when = f"after {len(record.measures):,} of {count(planned, 'run')}" if planned else "in its pilot round"
        said.append(f"the sweep was stopped {when}")
    return said


def _others_note(record: SweepRecord) -> list[str]:
    """Return a note on the runs that other programs disturbed, if any, and how much at most."""
    disturbed = [run.others for run in record.measures if run.others is not None and run.others.disturbed]
    if not disturbed:
        return []
    most = max(disturbed, key=lambda others: others.cores / others.of)
    of = f"{len(disturbed):,} of {count(len(record.measures), 'run')}"
    return [f"{of} were disturbed, at worst while {most}: such times are too long, and speed-ups mean little"]


def _failed_note(good_runs: int, name: str, why: str) -> str:
    return f"{'‡' if good_runs else '✗'} {name}: {one_line(why)}"


def _probe_note(record: SweepRecord, probe: Cell) -> str:
    """Return a note on why runs of a probe, which has no row, failed; empty where none did."""
    runs = [measure for measure in record.measures if measure.cell == probe.key]
    reasons = list(dict.fromkeys(measure.failed for measure in runs if measure.failed))
    if not reasons:
        return ""
    failed = sum(bool(measure.failed) for measure in runs)
    why = f"{failed} of {count(len(runs), 'run')} failed: {'; '.join(reasons)}"
    return _failed_note(len(runs) - failed, f"one worker with batch {probe.batch_size}, to compare with", why)
