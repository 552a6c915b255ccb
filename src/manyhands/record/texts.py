"""Numbers, units, times and counts as text for people. Imports no records, so that every room may use it."""

import math
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

NOTHING = "–"
"""Text of a missing value."""


class Bounds(Protocol):
    """A value with a lower and an upper bound, such as an `Estimate`."""

    value: float
    low: float
    high: float


def figure(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits and thousands separators: 0.0123, 1.76, 79,070."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded number: 9.996 is 10.0
    decimals = max(0, digits - 1 - exponent)
    return f"{value:,.{min(decimals, 9)}f}"


def plain(value: float) -> str:
    """Return a number without decimals if it is an integer, otherwise with three digits: 2, 0.125, 1,200,000."""
    return f"{value:,.0f}" if float(value).is_integer() else figure(value)


def fixed(value: float | None, decimals: int, unit: str = "") -> str:
    """Return a number with `decimals` decimals and its unit."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}{unit}"


def percent(value: float | None, decimals: int = 1) -> str:
    """Return a percentage: 1.2 %."""
    return fixed(value, decimals, " %")


def accuracy_text(value: float | None) -> str:
    """Return a share of hits as a percentage: 98.12 %; a dash for a task without accuracy."""
    return percent(None if value is None else 100 * value, 2)


def share(part: float, whole: float, decimals: int = 1) -> str:
    """Return `part` as a percentage of `whole`; nothing where `whole` is 0."""
    return percent(100 * part / whole, decimals) if whole > 0 else NOTHING


def rate(per_second: float | None) -> str:
    """Return a number of samples per second; nothing where it is 0, as on virtual clocks that stand still."""
    return fixed(per_second or None, 0)


def signed_percent(value: float | None) -> str:
    """Return a percentage with its sign: +1.2 %."""
    text = percent(value)
    return f"+{text}" if value is not None and value >= 0 and text != NOTHING else text


def plus_minus(value: float | None) -> str:
    """Return a percentage as a deviation to either side: ±1.2 %."""
    text = percent(value)
    return text if text == NOTHING else f"±{text}"


def times(value: float | None, decimals: int = 2) -> str:
    """Return a factor with `decimals` decimals: 1.76×."""
    return fixed(value, decimals, "×")


def duration(seconds: float | None) -> str:
    """Return a time in a suitable unit: 830 µs, 3.21 ms, 4.4 s, 2 min 5 s, 1 h 2 min."""
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
    """Return a time given in milliseconds, in a suitable unit."""
    return duration(ms / 1e3)


def factor(value: float) -> str:
    """Return a factor with three significant digits: 908×."""
    return f"{figure(value)}×"


def figure_percent(share: float) -> str:
    """Return a share between 0 and 1 as a percentage with three significant digits: 97.6 %."""
    return f"{figure(100 * share)} %"


def num_bytes(count: float | None) -> str:
    """Return a number of bytes in a suitable unit: 940 kB, 1.88 MB."""
    if count is None or not math.isfinite(count):
        return NOTHING
    for limit, factor, unit in ((1e3, 1, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB")):
        if count < limit:
            return f"{figure(count / factor)} {unit}" if factor > 1 else f"{count:.0f} B"
    return f"{figure(count / 1e12)} TB"


def with_bounds(estimate: Bounds, text: Callable[[float], str]) -> str:
    """Return a value and its bounds, with their common unit only once: 3.21 ms (3.10–3.32)."""
    value, low, high = (text(number) for number in (estimate.value, estimate.low, estimate.high))
    if low == value == high or NOTHING in (low, value, high):
        return value
    unit = value.lstrip("0123456789.,")
    if unit and low.lstrip("0123456789.,") == high.lstrip("0123456789.,") == unit:
        low, high = low.removesuffix(unit), high.removesuffix(unit)
    return f"{value} ({low}–{high})"


def in_brackets(*texts: str) -> str:
    """Return the texts that are not empty, in brackets after a blank: ` (95 %: 1.70–1.81; noisy)`."""
    joined = "; ".join(filter(None, texts))
    return f" ({joined})" if joined else ""


def workers_name(engine: str, workers: int, threads: int = 1) -> str:
    """Return a short name of an engine and its workers: `serial`, `mpi ×2`, `hybrid 2×2`."""
    if engine == "serial" and workers * threads == 1:
        return "serial"
    return f"{engine} {workers}×{threads}" if threads > 1 else f"{engine} ×{workers}"


def images_name(side: int) -> str:
    """Return the size of square images: `images 28×28`."""
    return f"images {side}×{side}" if side else "images as they are"


def day(moment: str) -> str:
    """Return an ISO date and time in words: 1 March 2025, 12:00."""
    try:
        date = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{date.day} {date:%B %Y, %H:%M}"


def count(number: float, noun: str) -> str:
    """Return a number with its noun in singular or plural: 1 run, 5 runs."""
    return f"{plain(number)} {noun}" if number == 1 else f"{plain(number)} {noun}s"
