"""Tables of a sweep as plain texts, and how they are written for READMEs and spreadsheets."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manyhands.record import Cell, Fit, Interval, Row, SweepRecord
from manyhands.record.texts import NOTHING, cell_name, cell_names, count, percent, times, with_span, workers_span
from manyhands.report.columns import EVERYTHING, SPEED, SPLIT, Column, split_percent

__all__ = [
    "EVERYTHING",
    "SPEED",
    "SPLIT",
    "Grid",
    "as_csv",
    "as_markdown",
    "fits_table",
    "notes",
    "numbers_table",
    "scaling_table",
]

LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
"""How people write the laws' names."""

NO_ERROR_PCT = 1e-4
"""A fit error below which a law only goes through its points, of which there are no more than it has parameters."""
NUMBER = re.compile(
    r"–|full|as is|×\d+|(≤ )?[-+±]?[\d,]+(\.\d+)?(\+\d+|\*|†| of [\d,]+)?"
    r"(×|²| (%|[µm]?s|min|min \d+ s|h \d+ min|[kMGT]?B|J))?"
    r"( \(.+\))?"
)
"""A number as tables write it: with its unit and its interval, or what stands where there is none."""


@dataclass(frozen=True)
class Grid:
    """A table of texts."""

    headings: list[str]
    rows: list[list[str]]


def scaling_table(record: SweepRecord, columns: Sequence[Column] = EVERYTHING) -> Grid:
    """Make the table of a sweep; columns that tell nothing here are left out. `notes` says what its marks mean."""
    shown = [column for column in columns if column.shown(record.rows)]
    return Grid([c.heading for c in shown], [[c.of(row) for c in shown] for row in record.rows])


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


def one_line(text: str) -> str:
    """Put a text that may have several lines in one."""
    return " ".join(text.split())


def numbers_table(record: SweepRecord) -> Grid:
    """Make the table of a sweep as plain numbers in full precision, with the units in the headings."""
    rows = [_numbers(row) for row in record.rows]
    headings = list(rows[0]) if rows else []
    return Grid(headings, [[plain_text(value) for value in row.values()] for row in rows])


def _numbers(row: Row) -> dict[str, object]:
    c = row.cell
    return {
        "run": cell_name(c),
        "role": c.role,
        "engine": c.engine,
        "workers": c.workers,
        "threads": c.threads,
        "sync": c.sync,
        "batch_size": c.batch_size,
        "image_size": c.image_size,
        "replicate": c.replicate,
        "repeats": row.repeats,
        "oversubscribed": row.oversubscribed,
        "failed": one_line(row.failed),
        **(_measured(row) if row.repeats else dict.fromkeys(_measured(row))),
    }


def _measured(row: Row) -> dict[str, object]:
    parts = ("compute", "serial", "comm", "wait")
    return {
        "read_s": row.read_s,
        **_bounds("step_ms", row.step_ms),
        "epoch_s": row.epoch_s,
        "eval_s": row.eval_s,
        "total_s": row.total_s,
        **_bounds("samples_per_s", row.samples_per_s),
        **_bounds("speed_up", row.speed_up),
        **_bounds("efficiency", row.efficiency),
        "improvement_pct": row.improvement_pct,
        "train_loss": row.train_loss,
        "test_loss": row.test_loss,
        "test_accuracy": row.test_accuracy,
        **{f"{part}_ms": getattr(row, f"{part}_ms") for part in parts},
        **{f"{part}_pct": split_percent(row, part) for part in parts},
        "bytes_per_step": row.bytes_per_step,
        "messages_per_step": row.messages_per_step,
        **_bounds("karp_flatt", row.karp_flatt),
        "max_rss_bytes": row.max_rss_bytes,
        "energy_j": row.energy_j,
    }


def _bounds(name: str, interval: Interval | None) -> dict[str, object]:
    low, high = (interval.low, interval.high) if interval and interval.is_known else (None, None)
    return {name: interval.value if interval else None, f"{name}_low": low, f"{name}_high": high}


def plain_text(value: object) -> str:
    """Write a value for a spreadsheet: numbers in full, nothing where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(value) if isinstance(value, float) else str(value)


def fits_table(record: SweepRecord) -> Grid:
    """Make the table of the fitted laws, a line each."""
    sizes = len({(fit.batch_size, fit.image_size) for fit in record.fits}) > 1
    headings = ["run", *(["batch", "image"] if sizes else []), "law", "fitted", "at most", "best workers", "fit error"]
    return Grid(headings, [_fit_line(fit, sizes) for fit in record.fits])


def _fit_line(fit: Fit, sizes: bool) -> list[str]:
    image = f"{fit.image_size}²" if fit.image_size else "as is"
    return [
        fit.series,
        *([f"{fit.batch_size}", image] if sizes else []),
        LAWS[fit.law],
        ", ".join(_parameter(name, p) for name, p in fit.parameters.items() if name != "rate")
        if fit.describes
        else NOTHING,
        _limit(fit),
        _best(fit),
        percent(fit.error_pct) if fit.error_pct > NO_ERROR_PCT else NOTHING,
    ]


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


def as_markdown(grid: Grid) -> str:
    """Write a table for a README; columns of numbers are set to the right."""
    right = [is_numbers(column) for column in zip(*grid.rows, strict=True)] or [False] * len(grid.headings)
    lines = [grid.headings, ["---:" if is_right else "---" for is_right in right], *grid.rows]
    first, rule, *rest = (f"| {' | '.join(markdown_text(cell) for cell in line)} |" for line in lines)
    return "\n".join([first, rule, *rest]) + "\n"


def is_numbers(column: Iterable[str]) -> bool:
    """Tell whether all of a column's texts are numbers, or say that there is none."""
    return all(NUMBER.fullmatch(text) for text in column)


def markdown_text(text: str) -> str:
    """Escape what Markdown would take as its own."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", one_line(text))


def as_csv(grid: Grid) -> str:
    """Write a table for a spreadsheet, one line per row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(grid.headings)
    writer.writerows([[_csv_text(one_line(cell)) for cell in row] for row in grid.rows])
    return text.getvalue()


def _csv_text(cell: str) -> str:
    """Mark a text that a spreadsheet would take for a formula as text; numbers stay what they are."""
    if not cell.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
