"""Cells and intervals of sweeps as text for people."""

import math
from collections.abc import Callable, Iterable

from manyhands.record.sweep import MOST_WORKERS, Cell, Interval, Row
from manyhands.record.texts import NOTHING, count, figure, fixed, images_name, workers_name


def span(interval: Interval, factor: float = 1.0, decimals: int = 2) -> str:
    """Return the bounds of an interval, multiplied by `factor`: 1.70–1.81."""
    low, high = (fixed(bound * factor, decimals) for bound in (interval.low, interval.high))
    # Two minus signs and a dash are hard to read.
    return f"{low} to {high}" if "-" in low + high else f"{low}–{high}"


def coverage(interval: Interval) -> str:
    """Return the confidence level of an interval: `95 %`, or `93.8 %` for a median of five repeats."""
    return f"{min(95.0, interval.coverage_pct):.3g} %"


def least_coverage(intervals: Iterable[Interval | None]) -> str:
    """Return the least coverage of the intervals that are shown; empty where none is."""
    known = [interval for interval in intervals if interval and interval.is_shown]
    return coverage(min(known, key=lambda interval: interval.coverage_pct)) if known else ""


def with_coverage(interval: Interval, factor: float = 1.0, decimals: int = 2) -> str:
    """Return an interval with its confidence level: `95 %: 1.70–1.81`; empty where its bounds say nothing."""
    return f"{coverage(interval)}: {span(interval, factor, decimals)}" if interval.is_shown else ""


def workers_span(best: Interval) -> str:
    """Return the bounds of a best number of workers: `9–14`, or `5 or more` without an upper bound."""
    return f"{best.low:.0f} or more" if best.high >= MOST_WORKERS else span(best, 1, 0)


def with_span(text: str, interval: Interval, factor: float = 1.0, decimals: int = 2) -> str:
    """Return the text of an interval's value, followed by its bounds where they say something."""
    if text == NOTHING or not interval.is_shown:
        return text
    return f"{text} ({span(interval, factor, decimals)})"


def duration_with_span(milliseconds: Interval | None) -> str:
    """Return a time and its bounds in one unit: 3.21 ms (3.10–3.35)."""
    if milliseconds is None or not math.isfinite(milliseconds.value):
        return NOTHING
    ms = milliseconds.value
    factor, unit = (1e3, "µs") if ms < 1 else (1.0, "ms") if ms < 1e3 else (1e-3, "s")
    text = figure(ms * factor)
    decimals = len(text.partition(".")[2])
    return with_span(f"{text} {unit}", milliseconds, factor, decimals)


def unpaired_note(row: Row) -> str:
    """Say how many speed-ups of a row are not within their repeat, so that a slow period does not cancel in them."""
    are = "is" if row.unpaired == 1 else "are"
    why = "since the baseline of the same repeat failed"
    return f"{row.unpaired} of {count(row.repeats, 'speed-up')} {are} against the baseline of another repeat, {why}"


def cell_name(cell: Cell) -> str:
    """Return engine, workers and strategy in short: `serial`, `mpi ×2`, `mpi ×2 local-sgd:period=8`."""
    name = workers_name(cell.engine, cell.workers, cell.threads)
    return name if cell.sync == "allreduce" else f"{name} {cell.sync}"


def cell_names(cells: Iterable[Cell]) -> dict[str, str]:
    """Return a unique name for each cell's key; batch, images and data are named only where they make a difference."""
    cells = list(cells)
    names = {cell.key: cell_name(cell) for cell in cells}

    def is_needed(field: str) -> bool:
        return len({(names[cell.key], getattr(cell, field)) for cell in cells}) > len(set(names.values()))

    extra: dict[str, Callable[[Cell], str]] = {
        "batch_size": lambda cell: f"batch {cell.batch_size}",
        "image_size": lambda cell: images_name(cell.image_size),
        "replicate": lambda cell: f"data ×{cell.replicate}",
    }
    needed = [words for field, words in extra.items() if is_needed(field)]
    return {cell.key: ", ".join([names[cell.key], *(words(cell) for words in needed)]) for cell in cells}
