"""Progress bars of one line each: name, bar, progress and time left, and whatever else fits."""

import time
from collections.abc import Callable, Sequence
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
    """A text beside a bar."""

    text: str
    drop: int = 0
    """Priority where there is no room: the text with the largest number is left out first, 0 never."""
    cuts: bool = False
    """Whether it is a sentence, of which the first words are better than nothing."""


def clock(seconds: float) -> str:
    """Write a time as a clock would: 1:05, 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def eta(seconds: float | None) -> str:
    """Write the time left, with a dash where it is not known."""
    return "ETA –" if seconds is None else f"ETA {clock(max(0.0, seconds))}"


def fitting(parts: Sequence[BarText], room: int) -> str:
    """Join the parts that fit into `room` columns, in their order; those that are never left out in any case."""
    kept = {i: part.text for i, part in enumerate(parts) if not part.drop}
    for i, part in sorted(enumerate(parts), key=lambda item: item[1].drop):
        if part.drop and part.text:
            left = room - cell_len(_joined({**kept, i: ""}))
            text = part.text if cell_len(part.text) <= left else _cut(part, left)
            kept |= {i: text} if text else {}
    return _joined(kept)


def _joined(kept: dict[int, str]) -> str:
    return " · ".join(kept[i] for i in sorted(kept))


def _cut(part: BarText, room: int) -> str:
    """Cut off whole words, so that no number is mistaken for a shorter one."""
    words = part.text[: max(0, room - 1)].rpartition(" ")[0].rstrip(",;:")
    return f"{words} …" if part.cuts and len(words) >= SHORTEST and len(words) + 2 <= room else ""


@final
class ProgressBars:
    """Bars below each other; the time left counts down between two updates."""

    def __init__(self, console: Console, *, transient: bool = False) -> None:
        self._console = console
        self._bar_width = SHORT_BAR if console.width < NARROW else BAR
        columns = (_TextColumn(self._name), BarColumn(bar_width=self._bar_width), _TextColumn(self._beside))
        self.progress = Progress(*columns, console=console, transient=transient)

    def add(self, name: str) -> TaskID:
        """Add a bar below the others and return its id."""
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
        """Update a bar: `label` says what `left_s`, the time left, is for; a `name` replaces the bar's."""
        ends = None if left_s is None else time.monotonic() + left_s
        self.progress.update(
            bar, completed=done, total=total, description=name, parts=list(parts), ends=ends, label=label
        )

    def show_run(
        self, bar: TaskID, done: int, total: int, text: str, left_s: float | None, name: str | None = None
    ) -> None:
        """Update a bar that counts runs, of which `text` describes the latest."""
        parts = [BarText(f"run {done}/{total}"), BarText(text, 1, cuts=True)]
        self.show(bar, done, total, parts, name=name, left_s=left_s)

    @property
    def _room(self) -> int:
        return self._console.width - self._bar_width

    def _name(self, task: Task) -> str:
        """Return the bar's name, without its middle where that leaves too little room for the progress."""
        name = " ".join(task.description.split())
        most = max(SHORTEST, self._room - cell_len(fitting(_parts(task), 0)) - 2)
        half = (most - 1) // 2
        return name if len(name) <= most else f"{name[:half]}…{name[len(name) - (most - 1 - half) :]}"

    def _beside(self, task: Task) -> str:
        return fitting(_parts(task), self._room - cell_len(self._name(task)) - 2)


@final
class _TextColumn(ProgressColumn):
    """A column of unstyled text; rich's own would take brackets for markup."""

    def __init__(self, text: Callable[[Task], str]) -> None:
        super().__init__()
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text(task), no_wrap=True)


def _parts(task: Task) -> list[BarText]:
    """Return a bar's texts, with the time left behind those that are never left out."""
    parts: list[BarText] = task.fields["parts"]
    ends: float | None = task.fields["ends"]
    if ends is None:
        return parts
    left = BarText(f"{task.fields['label']} {clock(max(0.0, ends - time.monotonic()))}")
    return [*(part for part in parts if not part.drop), left, *(part for part in parts if part.drop)]
