"""The result of rebuilding papers' tables: published figures, ours, and verdicts. Needs neither torch nor MPI."""

from typing import Any, Literal

from pydantic import BaseModel

from manyhands.record.store import FileIn, Folder
from manyhands.record.sweep import Interval

Verdict = Literal["reproduced", "better", "not", "oversubscribed", "not judged", "failed", "shown", "baseline"]
"""`not`: not reproduced. `oversubscribed`: measured with more workers than cores, which says nothing about speed.
`shown`: there is nothing to compare it with. `baseline`: the row that the others are compared with."""

PredictedVerdict = Literal["agrees", "above", "below", "too wide", ""]
"""How a predicted figure compares with the published one, by the tolerances of measured figures; empty where nothing is
judged."""

FigureKind = Literal["time", "speed-up", "improvement", "accuracy", "loss", "share", "count"]
"""How a figure is computed and judged. Speed-ups (and efficiencies of weak scaling) are the time of the row's base over
that of the row; improvements are the time saved, in per cent."""


class Taken(BaseModel):
    """One measured run of a reproduction."""

    setting: str
    """Key of the setting that was run."""
    repeat: int
    failed: str = ""
    """Why the run failed, in a sentence; empty if it succeeded."""
    run: str = ""
    """Folder of the run, relative to the reproduction's."""
    took_s: float = 0.0
    """Seconds from start to end, including start-up and reading the data."""
    values: dict[str, float] = {}
    """Measured figures by name."""


class Prediction(BaseModel):
    """A step of a setting with more workers than this machine has cores, as the simulator predicts it."""

    setting: str
    """Key of the setting."""
    how: str = ""
    """What was simulated: engine, strategy, network, and the calibration's date."""
    step_s: Interval | None = None
    """Seconds of a step, with the simulator's 90 % interval; None where it failed."""
    alone_s: float = 0.0
    """Predicted seconds of one worker's step, which speed-ups are relative to."""
    failed: str = ""
    """Why there is no prediction, in a sentence."""


class PredictedFigure(BaseModel):
    """A figure that was predicted, never measured; it stands beside measured ones and is judged by words of its own."""

    value: float
    low: float
    high: float
    how: str
    """What was simulated or scheduled, and from what."""
    verdict: PredictedVerdict = ""


class PaperFigure(BaseModel):
    """One figure of a table: published, measured, and how they compare."""

    column: str
    kind: FigureKind
    published: str = ""
    """As printed; empty where the paper gives none."""
    published_low: float | None = None
    published_high: float | None = None
    """The published bounds; they differ where the paper gives a range."""
    ours: Interval | None = None
    """Median over the repeats and its interval; None if not measured."""
    decimals: int = 2
    faster: float | None = None
    """Of a time: the paper's over ours."""
    predicted: PredictedFigure | None = None
    """For workers that this machine has too few cores for."""
    verdict: Verdict
    why: str = ""


class ReproducedRow(BaseModel):
    """One row of a paper's table."""

    labels: list[str]
    figures: list[PaperFigure]
    verdict: Verdict
    why: str = ""
    workers: int = 1
    """Workers, or nodes, of the row."""
    oversubscribed: bool = False
    """Whether they are more than this machine's cores."""
    settings: list[str] = []
    """Keys of the settings that were run for the row."""


class ReproducedTable(BaseModel):
    """One table of a paper, or figures that its text gives instead."""

    name: str
    title: str
    headings: list[str]
    """Headings of the label columns; figures carry their own."""
    rows: list[ReproducedRow]
    notes: list[str] = []


class ReproducedPaper(BaseModel):
    """All reproduced tables of one paper."""

    number: str
    title: str
    tables: list[ReproducedTable]
    left_out: str = ""
    """Tables and figures of the paper that are not rebuilt, and why."""


class ReproductionRecord(BaseModel):
    """The result of `manyhands reproduce`."""

    id: str
    status: Literal["complete", "interrupted"]
    asked: str
    """A paper's number, or `all`."""
    quick: bool
    repeats: int
    command: str
    """The command line that runs it again."""
    started: str
    wall_s: float
    papers: list[ReproducedPaper]
    rules: list[str]
    """How the verdicts were reached."""
    taken: list[Taken]
    predictions: list[Prediction] = []
    hardware: dict[str, Any]
    versions: dict[str, str]


class ReproductionDir(Folder[ReproductionRecord], kind="reproduction", record=ReproductionRecord):
    """The folder of one reproduction."""

    taken = FileIn("measures.jsonl")
    """One JSON object a line for each run that has ended; written as they end."""
    markdown = FileIn("reproduction.md")
    """The tables in Markdown."""
    runs = FileIn("runs")
    """The folders of the runs."""
    calibration = FileIn("calibration.json")
    """Calibration of the tasks that the user's own lacks."""
