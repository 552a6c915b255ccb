"""What came out of rebuilding papers' tables: each published figure, ours beside it, and a verdict. Needs no torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from manyhands.record.store import Folder
from manyhands.record.sweep import Interval

Verdict = Literal[
    "reproduced", "better", "not", "oversubscribed", "not judged", "failed", "shown", "baseline"
]  # fmt: skip
"""`not`: not reproduced. `oversubscribed`: measured with more workers than cores, which says nothing about speed.
`shown`: nothing to hold it against. `baseline`: what the other rows are held against."""


FigureKind = Literal["time", "speed-up", "improvement", "accuracy", "loss", "share", "count"]
"""How a figure is made and judged. Speed-ups (and efficiencies of weak scaling) are times of a row's base over its own;
improvements are speed-ups in per cent of the time that was saved."""


class Taken(BaseModel):
    """One run that was measured for a reproduction."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    setting: str
    """The key of the setting that was run."""
    repeat: int
    failed: str = ""
    """Why the run failed, in a sentence; empty where it went well."""
    run: str = ""
    """The run's folder, relative to the reproduction's."""
    took_s: float = 0.0
    """From its start to its end, with starting the workers and reading the data."""
    values: dict[str, float] = {}
    """The figures that it gave, by name."""


class PaperFigure(BaseModel):
    """One figure of a table: what the paper says, what we measured, and how they compare."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    column: str
    kind: FigureKind
    published: str = ""
    """As printed; empty where the paper gives none."""
    published_low: float | None = None
    published_high: float | None = None
    """The same as numbers; they differ where the paper gives a range."""
    ours: Interval | None = None
    """Median over the repeats and its interval; None where it was not measured."""
    decimals: int = 2
    faster: float | None = None
    """Of a time: how many times as long the paper's machine took."""
    verdict: Verdict
    why: str = ""


class ReproducedRow(BaseModel):
    """One row of a table."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    labels: list[str]
    figures: list[PaperFigure]
    verdict: Verdict
    why: str = ""
    workers: int = 1
    """Workers, or nodes, that the row asks for."""
    oversubscribed: bool = False
    """More of them than this machine has cores."""
    settings: list[str] = []
    """Keys of what was run for it."""


class ReproducedTable(BaseModel):
    """One table of a paper, or what its text says in place of one."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    title: str
    headings: list[str]
    """Of the labels; the figures carry their own."""
    rows: list[ReproducedRow]
    notes: list[str] = []


class ReproducedPaper(BaseModel):
    """All tables of one paper."""

    number: str
    title: str
    tables: list[ReproducedTable]


class ReproductionRecord(BaseModel):
    """The result of `manyhands reproduce`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    status: Literal["complete", "interrupted"]
    asked: str
    """A paper's number, or `all`."""
    quick: bool
    repeats: int
    command: str
    """What to type to run it again."""
    started: str
    wall_s: float
    papers: list[ReproducedPaper]
    rules: list[str]
    """How the verdicts were found."""
    taken: list[Taken]
    hardware: dict[str, Any]
    versions: dict[str, str]


class ReproductionDir(Folder[ReproductionRecord]):
    """The folder of one reproduction."""

    kind = "reproduction"
    record_name = "reproduction's record"
    record_class = ReproductionRecord
    record_file = "reproduction.json"
    dated_by = (record_file,)

    @property
    def taken(self) -> Path:
        """One JSON object a line for each run that has ended; written as they end."""
        return self.path / "measures.jsonl"

    @property
    def markdown(self) -> Path:
        """The tables, to paste."""
        return self.path / "reproduction.md"

    @property
    def runs(self) -> Path:
        """The folders of the runs."""
        return self.path / "runs"
