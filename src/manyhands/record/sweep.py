"""The result of a sweep: the runs of each cell, and their analysis. Needs neither torch nor MPI."""

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from manyhands.record.run import Others, RankSteps
from manyhands.record.store import FileIn, Folder
from manyhands.spec import with_field_docs

Kind = Literal["strong", "weak"]
"""Strong: the same global batch for every number of workers. Weak: the same batch per worker."""
Cause = Literal[
    "comm",
    "wait",
    "slow-rank",
    "straggler",
    "uneven",
    "others",
    "data",
    "serial",
    "small-batch",
    "oversubscription",
    "memory",
    "unclear",
    "servers",
    "unattributed",
]
"""Why a step of n workers takes longer than 1/n of one worker's; `memory` is the whole cost of sharing a machine.

`slow-rank` is waiting for one rank that is slower in most steps, `uneven` for one that has more rows, `straggler` for
long steps of one rank or another, and `wait` all three where a record has no times of single ranks. `others` is time in
which other programs had the cores, `data` is gathering rows. `unclear` is small-batch and memory together, where no
probe tells one from the other. `servers` is the time of ranks that compute nothing. `unattributed` is what the medians
of the parts lack to the median of their sum.
"""
MOST_WORKERS = 1024
"""Largest best number of workers that is reported: nobody measures beyond."""
LARGE_ERROR_PCT = 20.0
"""Fit error from which on a law does not describe the measurements."""
WIDE = 0.5
"""Width from which on the interval of a law's share, which lies between 0 and 1, is meaningless."""
BOUND = 1 - 1e-9
"""Serial share that counts as 1, the upper bound of the fits."""


class Cell(BaseModel):
    """One configuration of a sweep; a run of it is a `Measure`."""

    model_config = ConfigDict(frozen=True)

    role: Literal["baseline", "cell", "probe"] = "cell"
    """The baseline is one worker alone; a probe is one worker alone with 1/n of the batch, which separates the cost of
    a small batch from that of sharing a machine."""
    engine: str
    workers: int
    threads: int = 1
    sync: str = "allreduce"
    batch_size: int | Literal["full"]
    """The global batch."""
    image_size: int = 0
    replicate: int = 1

    @property
    def size(self) -> int:
        """Number of workers, counting every thread of hybrid processes."""
        return self.workers * self.threads

    @property
    def series(self) -> str:
        """Name of the curve over workers that it belongs to, such as `mpi` or `mpi local-sgd:period=8`."""
        name = self.engine if self.threads == 1 else f"{self.engine} (×{self.threads} threads)"
        return name if self.sync == "allreduce" else f"{name} {self.sync}"

    @property
    def key(self) -> str:
        """A name that is unique in the sweep."""
        many = f"{self.workers}x{self.threads}" if self.threads > 1 else f"{self.workers}"
        parts = [self.role, self.engine, many, self.sync, f"batch {self.batch_size}"]
        parts += [f"image {self.image_size}"] if self.image_size else []
        parts += [f"data x{self.replicate}"] if self.replicate > 1 else []
        return " ".join(parts)


class Measure(BaseModel):
    """One run of a cell. Milliseconds are per step after warm-up, split up as in `Steady`."""

    cell: str
    """Key of the cell."""
    repeat: int
    failed: str = ""
    """Why the run failed, in a sentence; empty if it succeeded. The figures of a failed run are meaningless."""
    run: str = ""
    """Folder of the run, relative to the sweep's."""
    hosts: int = 1
    batch_size: int = 0
    steps: int = 0
    steps_per_epoch: int = 0
    step_ms: float = 0.0
    compute_ms: float = 0.0
    serial_ms: float = 0.0
    comm_ms: float = 0.0
    wait_ms: float = 0.0
    gather_ms: float = 0.0
    """Part of `compute_ms`: gathering rows from the data, or waiting for samples."""
    by_sample: bool = False
    """Whether the data was read sample by sample."""
    data_workers: int = 0
    """Processes of each worker that read samples ahead."""
    typical: RankSteps | None = None
    """The worker with the (lower) median time per row; None in records of older versions."""
    slowest: RankSteps | None = None
    """The worker that takes longest in its usual step."""
    read_s: float = 0.0
    eval_s: float = 0.0
    total_s: float = 0.0
    bytes_per_step: float = 0.0
    messages_per_step: float = 0.0
    train_loss: float = 0.0
    test_loss: float = 0.0
    test_accuracy: float | None = None
    max_rss_bytes: int = 0
    """Largest memory of a rank."""
    warnings: list[str] = []
    energy_j: float | None = None
    """Energy that the machine used during the run; None where it does not tell."""
    others: Others | None = None


LEAST_COVERAGE_PCT = 90.0
"""Intervals with a smaller coverage are not shown."""


class Interval(BaseModel):
    """A value and its confidence interval, mostly of 95 %."""

    value: float
    low: float
    high: float
    coverage_pct: float = 95.0
    """Confidence level: less than 95 for a median of few repeats."""

    @property
    def is_shown(self) -> bool:
        """Whether the bounds are meaningful: enough runs, a width above 0, and finite."""
        return self.is_known and self.low < self.high and math.isfinite(self.high - self.low)

    @property
    def is_known(self) -> bool:
        """Whether there were enough runs to tell the bounds."""
        return self.coverage_pct >= LEAST_COVERAGE_PCT


class Row(BaseModel):
    """All runs of one cell: medians over the repeats."""

    cell: Cell
    ranks: int = 0
    """Workers and servers, each of which occupies a core; 0 in records of earlier versions."""
    repeats: int
    """Runs that succeeded."""
    failed: str = ""
    """Why all or some of the runs failed."""
    oversubscribed: bool = False
    """Whether there were more ranks than cores, so that times say little about scaling."""
    step_ms: Interval | None = None
    samples_per_s: Interval | None = None
    epoch_s: float | None = None
    """Seconds of an epoch: steps per epoch × step time."""
    speed_up: Interval | None = None
    """Relative to the baseline of the same batch and image size; in a weak sweep, of samples per second."""
    unpaired: int = 0
    """Repeats whose speed-up is against the baseline of another repeat, because that of their own failed."""
    efficiency: Interval | None = None
    """Speed-up as a share of the ranks, servers included."""
    improvement_pct: float | None = None
    """The papers' performance improvement: (T1 − Tn) / T1 × 100; in a weak sweep, of the time per sample."""
    karp_flatt: Interval | None = None
    """Serial fraction computed from the speed-up (Karp and Flatt 1990); None in a weak sweep, whose work grows with the
    workers, and where the speed-up is below 1 or above the number of workers."""
    compute_ms: float = 0.0
    serial_ms: float = 0.0
    comm_ms: float = 0.0
    wait_ms: float = 0.0
    gather_ms: float = 0.0
    read_s: float = 0.0
    eval_s: float = 0.0
    total_s: float = 0.0
    bytes_per_step: float = 0.0
    messages_per_step: float = 0.0
    train_loss: float = 0.0
    test_loss: float = 0.0
    test_accuracy: float | None = None
    max_rss_bytes: int = 0
    energy_j: float | None = None
    others: Others | None = None
    """Use of the cores by other programs in the run with the median disturbance."""


class Fit(BaseModel):
    """A scaling law fitted to the rows of one series."""

    law: Literal["amdahl", "gustafson", "usl"]
    series: str
    batch_size: int | Literal["full"]
    """The baseline's batch."""
    image_size: int
    parameters: dict[str, Interval]
    """`serial` of Amdahl and Gustafson; `contention`, `coherency` and `rate` of the Universal Scalability Law."""
    best_workers: Interval | None = None
    """Number of workers beyond which more do not help; None where the law has none up to `MOST_WORKERS`."""
    error_pct: float
    """Root mean square of the relative residuals."""

    @property
    def describes(self) -> bool:
        """Whether the law describes the measurements: small error, not at its bound, narrow intervals."""
        return self.error_pct < LARGE_ERROR_PCT and not self.is_slower and not self.is_vague

    @property
    def is_slower(self) -> bool:
        """Whether all work is serial by this law, as where several workers are slower than one."""
        serial = self.parameters.get("serial")
        return serial is not None and serial.value >= BOUND

    @property
    def is_vague(self) -> bool:
        """Whether the runs do not determine the law's shares."""
        shares = [p for name, p in self.parameters.items() if name != "rate"]
        return any(p.high - p.low >= WIDE or not p.is_known for p in shares)


class LostShare(BaseModel):
    """Percentage of the time of all ranks that was lost to one cause; negative for a gain."""

    cause: Cause
    percent: float


class Remedy(BaseModel):
    """A suggestion against one cause, with its predicted gain."""

    cause: Cause
    sentence: str
    gain_pct: float
    """Predicted growth of samples per second, in per cent."""
    gain_span: tuple[float, float] | None = None
    """Bounds between which that growth is expected; None in records of older versions."""
    command: str = ""
    """Command-line options that try it, such as `--sync overlap`."""


class Finding(BaseModel):
    """Analysis of the lost time of one row: `parts` sum up to 100 − efficiency."""

    row: str
    """Key of the row's cell."""
    headline: str
    parts: list[LostShare]
    sentences: list[str]
    remedies: list[Remedy]


class PredictedRow(BaseModel):
    """A row that could not be measured, predicted for a machine with a core for each rank; intervals are of 90 %."""

    cell: Cell
    ranks: int
    why: str
    """Why it could not be measured."""
    step_ms: Interval
    samples_per_s: Interval
    speed_up: Interval
    """Relative to the predicted step of one worker alone."""
    efficiency: Interval


class Predictions(BaseModel):
    """Predictions beside the rows of a sweep, which no fit and no finding uses."""

    rows: list[PredictedRow] = []
    source: str = ""
    """The calibration that they come from, with its age and the load that it was taken under."""
    notes: list[str] = []
    """Why rows are not predicted, and the command that would change it."""


@with_field_docs
class SweepRecord(BaseModel):
    """The result of `manyhands scale`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    kind: Kind
    status: Literal["complete", "interrupted"]
    task: str
    command: str
    """The command line that runs it again."""
    started: str
    wall_s: float
    repeats: int
    steps: int
    cells: list[Cell]
    measures: list[Measure]
    rows: list[Row]
    """One row for the baseline and each cell; probes have none."""
    fits: list[Fit]
    findings: list[Finding]
    warnings: list[str] = []
    """Why runs of several workers differ from that of one."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    budget: str = ""
    """Requested duration of the sweep; empty where steps and repeats were given instead."""
    notes: list[str] = []
    """What was left out to stay within the budget."""
    predictions: Predictions = Predictions()
    """What the simulator predicts for rows that could not be measured here with a core for each rank."""


class SweepDir(Folder[SweepRecord], kind="sweep", record=SweepRecord, dated_by=("sweep.toml", "sweep.json")):
    """The folder of one sweep."""

    toml = FileIn("sweep.toml")
    """The request, to resume a sweep that was stopped."""
    measures = FileIn("measures.jsonl")
    """One JSON object a line for each run that has ended; written as they end."""
    runs = FileIn("runs")
    """The folders of the runs."""
    report = FileIn("report.html")
    """The report for a browser; `report.csv`, `report.md` and pictures stand beside it."""
