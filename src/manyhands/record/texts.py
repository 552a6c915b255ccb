"""Numbers and names in words that people read: units, figures that matter, intervals, cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.record.simulation import Estimate
    from manyhands.record.sweep import Cell, Interval

NOTHING = "–"
"""What stands where there is nothing to tell."""


def figure(value: float, digits: int = 3) -> str:
    """Write a number with so many figures, and with commas: 0.0123, 1.76, 79,070."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded number: 9.996 is 10.0
    decimals = max(0, digits - 1 - exponent)
    return f"{value:,.{min(decimals, 9)}f}"


def plain(value: float) -> str:
    """Write a number of things, whole where it is: 2, 0.125, 1,200,000."""
    return f"{value:,.0f}" if float(value).is_integer() else figure(value)


def fixed(value: float | None, decimals: int) -> str:
    """Write a number with so many decimals."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}"


def percent(value: float | None, decimals: int = 1) -> str:
    """Write a number that is a percentage already."""
    text = fixed(value, decimals)
    return text if text == NOTHING else f"{text} %"


def share(part: float, whole: float, decimals: int = 1) -> str:
    """Write what percentage of a whole a part is; nothing where there is no whole."""
    return percent(100 * part / whole, decimals) if whole > 0 else NOTHING


def rate(per_second: float | None) -> str:
    """Write how many samples pass in a second; nothing where no time did, as on virtual clocks that stand still."""
    return fixed(per_second or None, 0)


def signed_percent(value: float | None) -> str:
    """Write a percentage with its sign: +1.2 %."""
    text = percent(value)
    return f"+{text}" if value is not None and value >= 0 and text != NOTHING else text


def plus_minus(value: float | None) -> str:
    """Write a percentage to either side: ±1.2 %."""
    text = percent(value)
    return text if text == NOTHING else f"±{text}"


def times(value: float | None, decimals: int = 2) -> str:
    """Write a factor: 1.76×."""
    text = fixed(value, decimals)
    return text if text == NOTHING else f"{text}×"


def duration(seconds: float | None) -> str:
    """Write a time in the unit that suits it: 830 µs, 3.21 ms, 4.4 s, 2 min 5 s, 1 h 2 min."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds == 0:
        return "0 s"
    for limit_s, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (59.95, 1.0, "s")):
        if abs(seconds) < limit_s:
            return f"{figure(seconds * factor)} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def milliseconds(ms: float) -> str:
    """Write a time that is given in milliseconds, in the unit that suits it."""
    return duration(ms / 1e3)


def factor(value: float) -> str:
    """Write a factor with three figures: 908×."""
    return f"{figure(value)}×"


def figure_percent(share: float) -> str:
    """Write a share as a percentage with three figures: 97.6 %."""
    return f"{figure(100 * share)} %"


def num_bytes(count: float | None) -> str:
    """Write a number of bytes in the unit that suits it: 940 kB, 1.88 MB."""
    if count is None or not math.isfinite(count):
        return NOTHING
    for limit, factor, unit in ((1e3, 1, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB")):
        if count < limit:
            return f"{figure(count / factor)} {unit}" if factor > 1 else f"{count:.0f} B"
    return f"{figure(count / 1e12)} TB"


def span(interval: Interval, factor: float = 1.0, decimals: int = 2) -> str:
    """Write the bounds of an interval: 1.70–1.81."""
    low, high = (fixed(bound * factor, decimals) for bound in (interval.low, interval.high))
    # Two minus signs and a dash are hard to read.
    return f"{low} to {high}" if "-" in low + high else f"{low}–{high}"


def has_width(interval: Interval | Estimate | None) -> bool:
    """Tell whether there is an interval to show."""
    if interval is None or not getattr(interval, "is_known", True):  # of an estimate the bounds are always known
        return False
    return interval.low < interval.high and math.isfinite(interval.high - interval.low)


def coverage(interval: Interval) -> str:
    """Write how often such an interval holds the true value: `95 %`, or `93.8 %` for a median of five repeats."""
    return f"{min(95.0, interval.coverage_pct):.3g} %"


def with_coverage(interval: Interval, factor: float = 1.0, decimals: int = 2) -> str:
    """Write an interval with how often it holds the true value: `95 %: 1.70–1.81`; nothing where it has no width."""
    return f"{coverage(interval)}: {span(interval, factor, decimals)}" if has_width(interval) else ""


def in_brackets(*texts: str) -> str:
    """Put what there is to say in brackets behind something: ` (95 %: 1.70–1.81; noisy)`."""
    said = "; ".join(text for text in texts if text)
    return f" ({said})" if said else ""


def workers_span(best: Interval) -> str:
    """Write the bounds of a best number of workers: `9–14`, or `5 or more` where no upper one was found."""
    from manyhands.record.sweep import MOST_WORKERS  # records are slow to import, and most texts need none

    return f"{best.low:.0f} or more" if best.high >= MOST_WORKERS else span(best, 1, 0)


def with_span(text: str, interval: Interval | None, factor: float = 1.0, decimals: int = 2) -> str:
    """Add the bounds to a value that stands already as text."""
    if interval is None or text == NOTHING or not has_width(interval):
        return text
    return f"{text} ({span(interval, factor, decimals)})"


def with_bounds(value: Estimate, text: Callable[[float], str]) -> str:
    """Write a value and its bounds, whose unit is said only once where it is the same: 3.21 ms (3.10–3.32)."""
    middle, low, high = (text(each) for each in (value.value, value.low, value.high))
    unit = middle.lstrip("0123456789.,")
    if low == middle == high or NOTHING in (low, middle, high):
        return middle
    if unit and all(each.lstrip("0123456789.,") == unit for each in (low, high)):
        low, high = (each.removesuffix(unit) for each in (low, high))
    return f"{middle} ({low}–{high})"


def cell_name(cell: Cell) -> str:
    """Say engine, workers and strategy in short: `serial`, `mpi ×2`, `hybrid 2×2`, `mpi ×2 local-sgd:period=8`."""
    name = workers_name(cell.engine, cell.workers, cell.threads)
    return name if cell.sync == "allreduce" else f"{name} {cell.sync}"


def workers_name(engine: str, workers: int, threads: int = 1) -> str:
    """Say engine and workers in short: `serial`, `mpi ×2`, `hybrid 2×2`."""
    if engine == "serial" and workers * threads == 1:
        return "serial"
    return f"{engine} {workers}×{threads}" if threads > 1 else f"{engine} ×{workers}"


def cell_names(cells: Iterable[Cell]) -> dict[str, str]:
    """Name cells by their keys so that no two are called the same: with batch, images and data where it takes that."""
    known = list(cells)
    names = {cell.key: cell_name(cell) for cell in known}

    def is_needed(field: str) -> bool:
        return len({(names[c.key], getattr(c, field)) for c in known}) > len(set(names.values()))

    extra: dict[str, Callable[[Cell], str]] = {
        "batch_size": lambda cell: f"batch {cell.batch_size}",
        "image_size": lambda cell: images_name(cell.image_size),
        "replicate": lambda cell: f"data ×{cell.replicate}",
    }
    needed = [words for field, words in extra.items() if is_needed(field)]
    return {cell.key: ", ".join([names[cell.key], *(words(cell) for words in needed)]) for cell in known}


def images_name(side: int) -> str:
    """Say how large images are: `images 28×28`."""
    return f"images {side}×{side}" if side else "images as they are"


def day(moment: str) -> str:
    """Write a moment as people do: 1 March 2025, 12:00."""
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{found.day} {found:%B %Y, %H:%M}"


def count(number: float, noun: str) -> str:
    """Write a number of things: 1 run, 5 runs."""
    return f"{plain(number)} {noun}" if number == 1 else f"{plain(number)} {noun}s"


def duration_with_span(milliseconds: Interval | None) -> str:
    """Write a time and its bounds in one unit: 3.21 ms (3.10–3.35)."""
    if milliseconds is None or not math.isfinite(milliseconds.value):
        return NOTHING
    ms = milliseconds.value
    factor, unit = (1e3, "µs") if ms < 1 else (1.0, "ms") if ms < 1e3 else (1e-3, "s")
    text = figure(ms * factor)
    decimals = len(text.partition(".")[2])
    return with_span(f"{text} {unit}", milliseconds, factor, decimals)
