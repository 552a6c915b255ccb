"""The parts of a paper's table: rows of published figures, and the setting of ours to compare each with."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from manyhands.record.papers import FigureKind

RAY_S = 6.0
"""Estimated time to start and end a Ray of one machine."""
NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")


@final
@dataclass(frozen=True)
class HostFacts:
    """The hardware that decides which rows can be measured here."""

    cores: int
    gpus: int = 0
    ray: bool = True

    @property
    def lacks_ray(self) -> str:
        """Why nothing can be run on Ray; empty where it is installed."""
        return "" if self.ray else "needs Ray, which is not installed here"

    @property
    def lacks_gpu(self) -> str:
        """Why nothing can be run on a GPU; empty where there is one."""
        return "" if self.gpus else "needs a GPU, and torch sees none here"


@final
@dataclass(frozen=True)
class Published:
    """A figure as the paper prints it: one number, or a range."""

    text: str
    low: float
    high: float


def printed(text: str) -> Published:
    """Parse a figure as it is printed: `43.67`, `9,511.66`, `2.5–3.5`, `about 10`."""
    numbers = [float(n.replace(",", "").replace("−", "-")) for n in NUMBER.findall(text)]
    assert 1 <= len(numbers) <= 2, f"'{text}' is neither a number nor a range"
    return Published(text, min(numbers), max(numbers))


def derived(value: float, decimals: int = 2, text: str = "") -> Published:
    """Return a figure that the paper does not print, computed from figures that it does."""
    return Published(text or f"{value:.{decimals}f}", value, value)


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run of ours: a command of manyhands with its options, and what `--quick` changes about them."""

    task: str
    options: Mapping[str, Any]
    command: Literal["train", "crossval", "profile"] = "train"
    work_s: float
    """Estimated training time on 2 cores, only to announce the total time."""
    rows: int = 0
    """Rows of each worker where the batch grows with the workers; 0 where they share the task's batch."""
    once: bool = False
    """Whether one run is enough: for figures that do not depend on how busy the machine is."""
    quick: Mapping[str, Any] | None = field(default_factory=dict)
    """Options, and `work_s`, that `--quick` changes; None leaves the whole setting out."""
    smaller: str = ""
    """What `--quick` leaves out of the data, in words; nothing is then judged."""
    shorter: str = ""
    """How much less `--quick` trains, in words; only speed is then judged."""

    @property
    def key(self) -> str:
        """The unique name of the setting: its command line."""
        words = (f"{name.replace('_', '-')}={value}" for name, value in sorted(self.options.items()))
        return " ".join([self.command, self.task, *words])

    @property
    def name(self) -> str:
        """A short name for people."""
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
        """Workers that compute at once in the paper, each on its own core: threads, processes, or nodes."""
        given = self.options
        return int(given.get("nodes") or given.get("workers", 1) * self.threads * given.get("blas_threads", 1))

    @property
    def about_s(self) -> float:
        """Estimated time of a run on 2 cores, with starting its processes."""
        engine, workers = self.options.get("engine", "serial"), self.options.get("workers", 1)
        start_s = 0.0 if engine in ("serial", "threads") else 0.8 * workers
        return 3.0 + start_s + (RAY_S if engine == "ray" else 0.0) + self.work_s

    def shortened(self) -> "Setting | None":
        """Return the setting that `--quick` runs instead; None where it runs nothing."""
        if self.quick is None:
            return None
        changes = {"work_s": self.work_s, **self.quick}
        return replace(self, work_s=changes.pop("work_s"), options={**self.options, **changes}, quick={})


@final
@dataclass(frozen=True)
class PaperColumn:
    """A column of figures, and the value of our runs to compare them with."""

    name: str
    kind: FigureKind
    of: str
    """The name of a run's value; `{}` stands for the row's `part`."""
    whole: bool = field(default=False, kw_only=True)
    """Whether the value is of the row's `whole` training, rather than of its `timed` steps."""
    scale: float = field(default=1.0, kw_only=True)
    decimals: int = field(default=2, kw_only=True)
    unjudged: str = field(default="", kw_only=True)
    """Why published figures of this column are shown but not judged."""


@final
@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A row: the published figures by column, and what is run for them."""

    labels: tuple[str, ...]
    published: Mapping[str, Published] = field(default_factory=dict)
    timed: Setting | None = None
    """The run for its times and speed-ups."""
    base: Setting | None = None
    """The run that its speed-up is relative to; the row whose `timed` it is, is the baseline."""
    whole: Setting | None = None
    """The run for its accuracy and loss, where that takes longer."""
    part: str = ""
    """The part of the run that the row is about, such as a function, if not all of it."""
    left: str = ""
    """Why nothing is run for it."""
    note: str = ""
    """Why a figure may differ, if not because of where the time went."""

    @property
    def settings(self) -> Iterator[Setting]:
        """All runs that the row needs."""
        return (setting for setting in (self.base, self.timed, self.whole) if setting)


@final
@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table or, where the paper has only a picture, the figures that its text gives."""

    name: str
    title: str
    headings: tuple[str, ...]
    """The headings of the labels."""
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()


EPOCH_AND_SPEED_UP = (
    PaperColumn("epoch s", "time", "epoch_s", decimals=3),
    PaperColumn("speed-up", "speed-up", "epoch_s"),
)


def parameters_table(name: str, text: str, setting: Setting) -> PaperTable:
    """Return a table of one figure: the number of the network's parameters."""
    return PaperTable(
        name=name,
        title="parameters of the network",
        headings=("layer",),
        columns=(PaperColumn("parameters", "count", "parameters", decimals=0),),
        rows=(PaperRow(labels=("total",), published={"parameters": printed(text)}, timed=setting),),
    )


Values = Mapping[str, float]
"""Medians of a setting's values over its repeats."""


@final
@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper that measurements can confirm."""

    text: str
    settings: tuple[Setting, ...]
    holds: Callable[[list[Values]], tuple[bool, str]]
    """Return whether the claim holds, and the figures that show it, from the values of the settings in their order."""
    speed: bool = False
    """Whether it is about time, which runs of more workers than cores cannot confirm."""
    otherwise: Literal["not", "better"] = "not"
    """The verdict if it does not hold: a disadvantage that ours does not have is better."""


@final
@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: its subject, and the tables and claims that are reproduced."""

    number: str
    title: str
    by: str
    """Authors, place and year, as far as it tells."""
    about: str
    """One line: network, data, how it was parallelised."""
    rebuilds: str
    """One line: its tables."""
    tables: tuple[PaperTable, ...]
    left_out: str
    """Tables and figures that are not rebuilt, and why, in sentences."""
    claims: tuple[Claim, ...] = ()
    network: str = ""
    """Predefined cluster whose network the paper names; without it, predictions are of one host with more cores."""
    story: str = ""
    """Paragraph of the document: what it found, what we find, what it could not know. `{TABLE/ROW/COLUMN/WHOSE}` stands
    for a figure, whose is `paper`, a number of cores, or `predicted`."""

    def settings(self) -> Iterator[Setting]:
        """Yield all runs that the paper needs; one may come several times."""
        for table in self.tables:
            for row in table.rows:
                yield from row.settings
        for claim in self.claims:
            yield from claim.settings
