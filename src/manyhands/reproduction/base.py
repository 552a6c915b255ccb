"""What a paper's table is made of: rows of published figures, and the setting of ours that stands beside each."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, final

from manyhands.record.papers import FigureKind

NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")


@final
@dataclass(frozen=True)
class HostFacts:
    """What decides which rows can be measured here."""

    cores: int
    gpus: int = 0


@final
@dataclass(frozen=True)
class Published:
    """A figure as the paper prints it: one number, or a range."""

    text: str
    low: float
    high: float

    @property
    def is_range(self) -> bool:
        """Whether the paper gives the width of what it expects."""
        return self.low < self.high


def printed(text: str) -> Published:
    """Read a figure as it is printed: `43.67`, `9,511.66`, `2.5–3.5`, `about 10`."""
    numbers = [float(n.replace(",", "").replace("−", "-")) for n in NUMBER.findall(text)]
    assert 1 <= len(numbers) <= 2, f"'{text}' is neither a number nor a range"
    return Published(text, min(numbers), max(numbers))


def derived(value: float, decimals: int = 2, text: str = "") -> Published:
    """Return a figure that the paper does not print but that follows from those it does."""
    return Published(text or f"{value:.{decimals}f}", value, value)


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """How ours is run: a command of manyhands, and what `--quick` changes about it."""

    task: str
    options: Mapping[str, Any]
    command: Literal["train", "crossval", "profile"] = "train"
    work_s: float
    """About how long its training takes on 2 cores; only to tell beforehand how long all will take."""
    once: bool = False
    """Whether one run will do: for what does not depend on how busy the machine is."""
    quick: Mapping[str, Any] | None = field(default_factory=dict)
    """Options that `--quick` changes; None leaves the whole setting out."""
    smaller: str = ""
    """What `--quick` leaves out of the data, in words; nothing is then judged."""
    shorter: str = ""
    """How much less `--quick` trains, in words; only speed is then judged."""

    @property
    def key(self) -> str:
        """A name that no other setting has: its command line."""
        words = (f"{name.replace('_', '-')}={value}" for name, value in sorted(self.options.items()))
        return " ".join([self.command, self.task, *words])

    @property
    def name(self) -> str:
        """What people call it."""
        given = self.options
        engine, workers = given.get("engine", "serial"), given.get("workers", 1)
        parts = [
            f"profile of {self.task}" if self.command == "profile" else self.task,
            f"{engine} {workers}×{self.threads}" if self.threads > 1 else f"{engine} ×{workers}" * (workers > 1),
            f"images {given['image_size']}²" if "image_size" in given else "",
            f"data ×{given['replicate']}" if given.get("replicate", 1) > 1 else "",
            f"{given['nodes']} nodes" if given.get("nodes", 1) > 1 else "",
            f"{given['folds']} folds" if "folds" in given else "",
            f"{given['epochs']} epochs" if self.once and "epochs" in given else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def threads(self) -> int:
        """Threads of each process."""
        return int(self.options.get("threads", 1))

    @property
    def workers(self) -> int:
        """Workers that compute at once in the paper, each on a core of its own: threads, processes, or nodes."""
        return int(self.options.get("nodes") or self.options.get("workers", 1) * self.threads)

    @property
    def about_s(self) -> float:
        """About how long a run takes on 2 cores, with starting its processes."""
        alone = self.options.get("engine", "serial") in ("serial", "threads")
        return 3.0 + (0.0 if alone else 0.8 * self.options.get("workers", 1)) + self.work_s

    def shortened(self) -> "Setting | None":
        """Return what `--quick` runs instead; None where it runs nothing."""
        if self.quick is None:
            return None
        work_s = self.quick.get("work_s", self.work_s)
        changed = {name: value for name, value in self.quick.items() if name != "work_s"}
        return Setting(
            task=self.task,
            command=self.command,
            options={name: v for name, v in {**self.options, **changed}.items() if v is not None},
            work_s=work_s,
            once=self.once,
            smaller=self.smaller,
            shorter=self.shorter,
        )


@final
@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A column of figures, and which of ours stands beside them."""

    name: str
    kind: FigureKind
    of: str
    """The value of a run that it is made from; `{}` stands for the row's part."""
    whole: bool = False
    """Whether that is a value of the row's whole training, rather than of its timed steps."""
    scale: float = 1.0
    decimals: int = 2
    unjudged: str = ""
    """Why figures of this column cannot be compared, though there are some."""


@final
@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A row: what the paper says by column, and what of ours is run for it."""

    labels: tuple[str, ...]
    published: Mapping[str, Published] = field(default_factory=dict)
    timed: Setting | None = None
    """What is run for its times, and speed-ups."""
    base: Setting | None = None
    """What its speed-up is held against; the row of which it is `timed` is the baseline."""
    whole: Setting | None = None
    """What is run for its accuracy and loss, where that takes longer."""
    part: str = ""
    """What of the run it is about, such as a function, where not all of it."""
    left: str = ""
    """Why nothing is run for it."""
    note: str = ""
    """What explains a figure that differs, if not where the time went."""

    @property
    def settings(self) -> Iterator[Setting]:
        """What is run for it."""
        return (setting for setting in (self.base, self.timed, self.whole) if setting)


@final
@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table or, where the paper has only a picture, what its text says about it."""

    name: str
    title: str
    headings: tuple[str, ...]
    """Of the labels."""
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()


Values = Mapping[str, float]
"""Medians of a setting's values over its repeats."""


@final
@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper that measurements can bear out."""

    text: str
    settings: tuple[Setting, ...]
    holds: Callable[[list[Values]], tuple[bool, str]]
    """Tells from the values of the settings, in their order, whether it holds, and by which figures."""
    speed: bool = False
    """Whether it is about time, of which crowded runs say nothing."""
    otherwise: Literal["not", "better"] = "not"
    """What it is if it does not hold: a harm that ours does not suffer is better."""


@final
@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: what it is about, and what of it is rebuilt."""

    number: str
    title: str
    about: str
    """One line: network, data, how it was parallelised."""
    rebuilds: str
    """One line: its tables."""
    tables: tuple[PaperTable, ...]
    claims: tuple[Claim, ...] = ()

    def settings(self) -> dict[str, Setting]:
        """Return everything to run, each once, by its key."""
        of_rows = (s for table in self.tables for row in table.rows for s in row.settings)
        of_claims = (s for claim in self.claims for s in claim.settings)
        return {setting.key: setting for setting in chain(of_rows, of_claims)}
