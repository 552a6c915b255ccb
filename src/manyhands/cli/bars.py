"""Progress bars: each is one line with its name, the bar, how far it is and the time left, and what else fits."""

import time
from collections.abc import Sequence
from typing import NamedTuple, final

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.text import Text

BAR, SHORT_BAR = 20, 10
NARROW = 100
"""Columns of a terminal below which the bar is short."""
SHORTEST = 12
"""Letters below which nothing is cut off."""


class BarText(NamedTuple):
    """Something to tell beside a bar."""

    text: str
    drop: int = 0
    """Where there is no room, parts of a greater number are left out first; those of 0 never are."""
    cuts: bool = False
    """Whether it is a sentence, of which the first words are better than nothing."""


def clock(seconds: float) -> str:
    """Write a time as a clock would: 1:05, 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def eta(seconds: float | None) -> str:
    """Say how long it goes on, where that is known."""
    return "ETA –" if seconds is None else f"ETA {clock(max(0.0, seconds))}"


def fitting(parts: Sequence[BarText], room: int) -> str:
    """Join as many parts as there is room for, in their order; those of 0 in any case."""
    told: dict[int, str] = {i: part.text for i, part in enumerate(parts) if not part.drop}
    for i, part in sorted(enumerate(parts), key=lambda each: each[1].drop):
        if part.drop and part.text:
            left = room - cell_len(_joined({**told, i: ""}))
            text = part.text if cell_len(part.text) <= left else _cut(part, left)
            told |= {i: text} if text else {}
    return _joined(told)


def _joined(told: dict[int, str]) -> str:
    return " · ".join(told[i] for i in sorted(told))


def _cut(part: BarText, room: int) -> str:
    """Cut off whole words, so that no number is mistaken for a shorter one."""
    words = part.text[: max(0, room - 1)].rpartition(" ")[0].rstrip(",;:")
    return f"{words} …" if part.cuts and len(words) >= SHORTEST and len(words) + 2 <= room else ""


@final
class ProgressBars:
    """Bars below each other; the time left goes on falling while nothing is told."""

    def __init__(self, console: Console, *, transient: bool = False) -> None:
        self._console = console
        width = SHORT_BAR if console.width < NARROW else BAR
        columns = (_Name(console, width), BarColumn(bar_width=width), _Beside(console, width))
        self.progress = Progress(*columns, console=console, transient=transient)

    def add(self, name: str) -> TaskID:
        """Begin a bar."""
        return self.progress.add_task(name, total=None, parts=[BarText("starting")], ends=None, label="ETA")

    def show(
        self,
        bar: TaskID,
        done: float,
        total: float | None,
        parts: Sequence[BarText],
        *,
        name: str | None = None,
        left_s: float | None = None,
        label: str = "ETA",
    ) -> None:
        """Draw it; `left_s` is the time left, of which `label` says what for."""
        ends = None if left_s is None else time.monotonic() + left_s
        self.progress.update(bar, completed=done, total=total, parts=list(parts), ends=ends, label=label)
        if name is not None:
            self.progress.update(bar, description=name)


@final
class _Name(ProgressColumn):
    """The bar's name; one that leaves no room for how far it is loses its middle."""

    def __init__(self, console: Console, bar: int) -> None:
        super().__init__()
        self._console, self._bar = console, bar

    def render(self, task: Task) -> Text:
        """Write it."""
        return Text(_name(task, self._console.width - self._bar), no_wrap=True)


@final
class _Beside(ProgressColumn):
    """How far it is, the time left, and what else there is room for."""

    def __init__(self, console: Console, bar: int) -> None:
        super().__init__()
        self._console, self._bar = console, bar

    def render(self, task: Task) -> Text:
        """Write it."""
        room = self._console.width - self._bar
        return Text(fitting(_parts(task), room - cell_len(_name(task, room)) - 2), no_wrap=True)


def _parts(task: Task) -> list[BarText]:
    """Return what is told, with the time left behind what must be."""
    parts: list[BarText] = task.fields["parts"]
    ends: float | None = task.fields["ends"]
    if ends is None:
        return parts
    left = BarText(f"{task.fields['label']} {clock(max(0.0, ends - time.monotonic()))}")
    must = [part for part in parts if not part.drop]
    return [*must, left, *(part for part in parts if part.drop)]


def _name(task: Task, room: int) -> str:
    name = " ".join(task.description.split())
    most = max(SHORTEST, room - cell_len(fitting(_parts(task), 0)) - 2)
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[len(name) - (most - 1 - half) :]}"
