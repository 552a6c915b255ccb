"""The tables of a sweep: their columns, the papers' own first, which table has which, and what their marks mean."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from manyhands.record import Cell, Fit, Interval, Row, SweepRecord
from manyhands.record.labels import cell_name, cell_names, duration_with_span, with_span, workers_span
from manyhands.record.texts import NOTHING, count, duration, figure, fixed, num_bytes, percent, plain, rate, times
from manyhands.report.tables.table import Column, Table, fields, numbers, one_line, tabulate

LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
"""How people write the laws' names."""
NO_ERROR_PCT = 1e-4
"""A fit error below which a law only goes through its points, of which there are no more than it has parameters."""
PARTS = ("compute", "serial", "comm", "wait")
"""Parts of a step's time."""


def marked_name(row: Row) -> str:
    """Name a row; ✗ where all runs failed, ‡ where some did, † where ranks had to share cores."""
    marks = [("✗", row.failed and not row.repeats), ("‡", row.failed and row.repeats), ("†", row.oversubscribed)]
    return " ".join([cell_name(row.cell), *(mark for mark, holds in marks if holds)])


def split_percent(row: Row, part: str) -> float | None:
    """Return the share of a step's time that one of its parts takes; None where a step takes none."""
    whole = row.compute_ms + row.serial_ms + row.comm_ms + row.wait_ms
    return 100 * float(getattr(row, f"{part}_ms")) / whole if whole else None


def _speed_up(row: Row) -> str:
    return with_span(times(row.speed_up.value), row.speed_up) if row.speed_up else NOTHING


def _efficiency(row: Row) -> str:
    if row.efficiency is None:
        return NOTHING
    return with_span(percent(100 * row.efficiency.value, 0), row.efficiency, 100, 0)


def _karp_flatt(row: Row) -> str:
    if row.karp_flatt is None or not 0 <= row.karp_flatt.value <= 1:  # records of earlier versions have such
        return NOTHING
    return with_span(percent(100 * row.karp_flatt.value), row.karp_flatt, 100, 1)


def _improvement(row: Row) -> str:
    """Write the time saved; where none was, the speed-up tells how much slower it is."""
    return percent(row.improvement_pct) if (row.improvement_pct or 0.0) >= 0 else NOTHING


def _setting(
    csv: str, heading: str = "", text: Callable[[Row], str] | None = None, about: str = "", varies: str = ""
) -> Column[Row]:
    """Return the column of a cell's field `csv`, shown where the cells differ in it, or in `varies`."""

    def shown(rows: Sequence[Row]) -> bool:
        return len({getattr(row.cell, varies or csv) for row in rows}) > 1

    return Column(heading, text, about, shown=shown, csv=csv, number=attrgetter(f"cell.{csv}"))


def _measured(
    heading: str,
    text: Callable[[Row], str] | None,
    about: str,
    csv: str,
    number: Callable[[Row], object] | None = None,
    *,
    drop: int = 0,
    shown: Callable[[Sequence[Row]], bool] | None = None,
    bounds: bool = False,
) -> Column[Row]:
    """Return a column of what comes from runs, so that there is nothing in it where all of them failed."""
    read = number or attrgetter(csv)
    return Column(
        heading,
        text and (lambda row: text(row) if row.repeats else NOTHING),
        about,
        drop=drop,
        shown=shown,
        csv=csv,
        number=lambda row: read(row) if row.repeats else None,
        bounds=bounds,
    )


def _part(part: str, about: str, drop: int = 0) -> Column[Row]:
    def share(row: Row) -> float | None:
        return split_percent(row, part)

    return _measured(part, lambda row: percent(share(row)), about, f"{part}_pct", share, drop=drop)


RUN: Column[Row] = Column(
    "run",
    marked_name,
    "Engine × workers, and the strategy where it is not allreduce.",
    left=True,
    csv="run",
    number=lambda row: cell_name(row.cell),
)
WORKERS = _setting("workers", "workers", lambda r: f"{r.cell.size:,}", "Workers that shared the work.", varies="size")
BATCH = _setting(
    "batch_size",
    "batch",
    lambda r: "full" if r.cell.batch_size == "full" else f"{r.cell.batch_size:,}",
    "Samples of a step, over all workers.",
)
IMAGE = _setting(
    "image_size",
    "image",
    lambda r: f"{r.cell.image_size}²" if r.cell.image_size else "as is",
    "Side of the images.",
)
DATA = _setting("replicate", "data", lambda r: f"×{r.cell.replicate}", "How often the data was repeated.")
REPEATS: Column[Row] = Column(
    "repeats", lambda r: f"{r.repeats}", "Runs that went well; figures are their medians.", csv="repeats"
)
READ = _measured("read", lambda r: duration(r.read_s), "Time to read the data.", "read_s")
STEP = _measured(
    "time per batch",
    lambda r: duration_with_span(r.step_ms),
    "Time of a step once the run had warmed up, with its interval.",
    "step_ms",
    bounds=True,
)
EPOCH = _measured("per epoch", lambda r: duration(r.epoch_s), "Time of a pass over the data.", "epoch_s")
EVALUATION = _measured("", None, "Time of the evaluations.", "eval_s")
TOTAL = _measured(
    "total", lambda r: duration(r.total_s), "Time of the whole run, reading and testing included.", "total_s"
)
RATE = _measured(
    "samples/s",
    lambda r: rate(r.samples_per_s.value if r.samples_per_s else None),
    "Samples that the workers get through in a second, together.",
    "samples_per_s",
    bounds=True,
)
SPEED_UP = _measured(
    "speed-up", _speed_up, "How many times as fast as one worker, with its interval.", "speed_up", bounds=True
)
EFFICIENCY = _measured(
    "efficiency",
    _efficiency,
    "Speed-up as a share of the number of workers, with its interval.",
    "efficiency",
    drop=1,
    bounds=True,
)
IMPROVEMENT = _measured(
    "PI",
    _improvement,
    "Performance improvement: time saved as a share of one worker's, (T1 − Tn) / T1; none where nothing was saved.",
    "improvement_pct",
    drop=8,
)
KARP_FLATT = _measured(
    "Karp–Flatt",
    _karp_flatt,
    "Share of the work that would have to be serial to explain the speed-up of a strong sweep, with its interval.",
    "karp_flatt",
    shown=lambda rows: any(_karp_flatt(row) != NOTHING for row in rows),
    bounds=True,
)
COMPUTE = _part("compute", "Forward and backward pass, which the workers share out.")
SERIAL = _part("serial", "What every worker repeats: the optimiser's step and the loop around it.", drop=4)
COMM = _part("comm", "What the exchanges themselves took.")
WAIT = _part("wait", "Waiting for the slowest worker.", drop=2)
SENT = _measured(
    "sent/step",
    lambda r: num_bytes(r.bytes_per_step),
    "Bytes that leave the ranks in a step, summed.",
    "bytes_per_step",
    drop=7,
)
MESSAGES = _measured(
    "messages/step",
    lambda r: plain(r.messages_per_step),
    "Calls that exchange something in a step, summed.",
    "messages_per_step",
)
MEMORY = _measured(
    "memory/rank", lambda r: num_bytes(r.max_rss_bytes), "Memory of the rank that took the most.", "max_rss_bytes"
)
ENERGY = _measured(
    "energy",
    lambda r: NOTHING if r.energy_j is None else f"{figure(r.energy_j)} J",
    "What the machine used during a run, as its counters tell.",
    "energy_j",
    shown=lambda rows: any(row.energy_j is not None for row in rows),
)
TRAIN_LOSS = _measured(
    "train loss", lambda r: fixed(r.train_loss, 4), "Mean loss over the last epoch of training.", "train_loss"
)
TEST_LOSS = _measured(
    "test loss", lambda r: fixed(r.test_loss, 4), "Loss on data that was not trained on.", "test_loss"
)
ACCURACY = _measured(
    "accuracy",
    lambda r: percent(100 * r.test_accuracy, 2),
    "Share of the test data that is guessed right.",
    "test_accuracy",
    drop=6,
)

EVERYTHING = (
    *(RUN, _setting("role"), _setting("engine"), WORKERS, _setting("threads"), _setting("sync")),
    *(BATCH, IMAGE, DATA, REPEATS, *fields("oversubscribed", "failed")),
    *(READ, STEP, EPOCH, EVALUATION, TOTAL, RATE, SPEED_UP, EFFICIENCY, IMPROVEMENT, TRAIN_LOSS, TEST_LOSS, ACCURACY),
    *(_measured("", None, "", f"{part}_ms") for part in PARTS),
    *(COMPUTE, SERIAL, COMM, WAIT, SENT, MESSAGES, KARP_FLATT, MEMORY, ENERGY),
)
"""All columns: the papers' own first; some are for spreadsheets alone."""

WHO = (RUN, BATCH, IMAGE, DATA)
"""What tells the rows apart."""

SPEED = (*WHO, RATE, SPEED_UP, EFFICIENCY, IMPROVEMENT, ACCURACY)
"""How fast, in a narrow table."""

SPLIT = (*WHO, STEP, COMPUTE, SERIAL, COMM, WAIT, SENT)
"""Where a step's time goes, in a narrow table."""

ON_TERMINAL = {"how fast": SPEED, "where a step's time goes": SPLIT}
ON_PAGE = {
    "Speed": (*WHO, STEP, EPOCH, RATE, SPEED_UP, EFFICIENCY, IMPROVEMENT, KARP_FLATT),
    "Where a step's time goes": (*WHO, COMPUTE, SERIAL, COMM, WAIT, SENT, MESSAGES, MEMORY, ENERGY),
    "What was learned": (*WHO, REPEATS, READ, TOTAL, TRAIN_LOSS, TEST_LOSS, ACCURACY),
}
"""The tables of a terminal and of the page, which together have all columns."""


def scaling_table(record: SweepRecord, columns: Sequence[Column[Row]] = EVERYTHING, caption: str = "") -> Table:
    """Return the table of a sweep; columns that tell nothing here are left out. `notes` says what its marks mean."""
    return tabulate(columns, record.rows, caption, _mark)


def _mark(row: Row) -> str:
    return "failed" if not row.repeats else "shared" if row.oversubscribed else ""


def scaling_tables(record: SweepRecord, chosen: dict[str, tuple[Column[Row], ...]]) -> list[Table]:
    """Return the tables of a sweep for `ON_TERMINAL` or `ON_PAGE`."""
    return [scaling_table(record, columns, caption) for caption, columns in chosen.items()]


def numbers_table(record: SweepRecord) -> Table:
    """Return the table of a sweep as plain numbers in full precision, with the units in the headings."""
    return numbers(EVERYTHING, record.rows)


def fits_table(record: SweepRecord, caption: str = "") -> Table:
    """Return the table of the fitted laws, a line each."""
    return tabulate(FITS, record.fits, caption)


def _several_sizes(fits: Sequence[Fit]) -> bool:
    return len({(fit.batch_size, fit.image_size) for fit in fits}) > 1


def _fitted(fit: Fit) -> str:
    parameters = [_parameter(name, interval) for name, interval in fit.parameters.items() if name != "rate"]
    return ", ".join(parameters) if fit.describes else NOTHING


def _parameter(name: str, interval: Interval) -> str:
    decimals = 3 if name == "coherency" else 1
    return f"{name} {with_span(percent(100 * interval.value, decimals), interval, 100, decimals)}"


def _limit(fit: Fit) -> str:
    """Return the speed-up that no number of workers exceeds, which only Amdahl's law tells straight away."""
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
    """Say what the marks in the table mean: whose ranks shared cores, what failed and why."""
    names = cell_names(row.cell for row in record.rows)
    found = [_failed_note(r.repeats, names[r.cell.key], r.failed) for r in record.rows if r.failed]
    found += [note for cell in record.cells if cell.role == "probe" and (note := _probe_note(record, cell))]
    if any(r.oversubscribed for r in record.rows):
        cores = record.hardware.get("cores")
        have = f" than the {count(cores, 'core')} of this machine" if isinstance(cores, int) else " than cores"
        found.append(f"† more ranks{have}: such times say little about how the work scales")
    found += [f"warning: {sentence}" for sentence in record.warnings]
    found += [*record.notes, *_others_note(record)]
    if record.status == "interrupted":
        planned = len(record.cells) * record.repeats
        when = f"after {len(record.measures):,} of {count(planned, 'run')}" if planned else "in its pilot round"
        found.append(f"the sweep was stopped {when}")
    return found


def _others_note(record: SweepRecord) -> list[str]:
    """Say that other programs disturbed runs, if they did, and how much at the most."""
    disturbed = [run.others for run in record.measures if run.others is not None and run.others.disturbed]
    if not disturbed:
        return []
    most = max(disturbed, key=lambda others: others.cores / others.of)
    of = f"{len(disturbed):,} of {count(len(record.measures), 'run')}"
    return [f"{most} in the worst of {of} that they disturbed: such times are too long, and speed-ups mean little"]


def _failed_note(good: int, name: str, why: str) -> str:
    return f"{'‡' if good else '✗'} {name}: {one_line(why)}"


def _probe_note(record: SweepRecord, probe: Cell) -> str:
    """Say what failed of one worker alone with a smaller batch, which has no row of its own."""
    runs = [measure for measure in record.measures if measure.cell == probe.key]
    reasons = list(dict.fromkeys(measure.failed for measure in runs if measure.failed))
    if not reasons:
        return ""
    failed = sum(bool(measure.failed) for measure in runs)
    why = f"{failed} of {count(len(runs), 'run')} failed: {'; '.join(reasons)}"
    return _failed_note(len(runs) - failed, f"one worker with batch {probe.batch_size}, to compare with", why)
