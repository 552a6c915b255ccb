"""Look through many files before ranks start, with a progress bar where that takes long."""

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

QUIET_S = 2.0
"""Seconds after which a bar is shown."""
MOST_SCANNED = 50_000
"""Files that are looked at; of more, evenly spaced ones, and the others are checked when a batch needs them."""


def evenly(items: Sequence[T]) -> list[T]:
    """Return up to `MOST_SCANNED` items, evenly spaced."""
    number = min(len(items), MOST_SCANNED)
    return [items[i * len(items) // number] for i in range(number)]


def bar_over(items: Sequence[T], label: str) -> Iterator[T]:
    """Yield the items; on a terminal a bar on stderr shows how far it is."""
    from rich.console import Console
    from rich.progress import Progress

    begin, bar = time.monotonic(), Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=len(items))
    try:
        for done, item in enumerate(items, 1):
            yield item
            if bar.console.is_terminal and time.monotonic() - begin > QUIET_S:
                bar.start()  # which does nothing where it has been started
                bar.update(task, completed=done)
    finally:
        if bar.live.is_started:  # or an empty line would be written where there is no terminal
            bar.stop()
