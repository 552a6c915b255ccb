"""What came out of a sweep: the runs of each cell, and what they say together. Needs neither torch nor MPI."""

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from manyhands.record.run import Others
from manyhands.record.store import Folder
from manyhands.spec import with_field_docs

Kind = Literal["strong", "weak"]
"""Strong: the same batch for however many workers. Weak: the same batch for each worker."""
Cause = Literal["comm", "wait", "serial", "small-batch", "oversubscription", "memory", "unclear"]
"""Why a step of n workers takes longer than an n-th of one worker's; `memory` is all that sharing a machine costs.

`unclear` stands for small-batch and memory together, where no probe tells one from the other.
"""
MOST_WORKERS = 1024
"""A best number of workers beyond this is as good as none: nobody measures that far."""
LARGE_ERROR_PCT = 20.0
"""A fit error from which on a law does not describe what was measured."""
WIDE = 0.5
"""Width from which on the interval of a law's share, which lies between 0 and 1, says nothing."""
BOUND = 1 - 1e-9
"""A serial share as good as 1, beyond which no law with such a share goes."""


class Cell(BaseModel):
    """One configuration of a sweep; a run of it is a `Measure`."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    role: Literal["baseline", "cell", "probe"] = "cell"
    """The baseline is one worker alone; a probe is one worker alone with an n-th of the batch, to tell what a small
    batch costs from what sharing a machine costs."""
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
        """Number of workers, threads of hybrid processes counted one by one."""
        return self.workers * self.threads

    @property
    def series(self) -> str:
        """What is the same along a curve over workers, such as `mpi` or `mpi local-sgd:period=8`."""
        name = self.engine if self.threads == 1 else f"{self.engine} (×{self.threads} threads)"
        return name if self.sync == "allreduce" else f"{name} {self.sync}"

    @property
    def key(self) -> str:
        """A name that no other cell of the sweep has."""
        many = f"{self.workers}x{self.threads}" if self.threads > 1 else f"{self.workers}"
        parts = [self.role, self.engine, many, self.sync, f"batch {self.batch_size}"]
        parts += [f"image {self.image_size}"] if self.image_size else []
        parts += [f"data x{self.replicate}"] if self.replicate > 1 else []
        return " ".join(parts)


class Measure(BaseModel):
    """One run of a cell. Milliseconds are of a step, once the run had warmed up; they sum up to `step_ms`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    cell: str
    """The cell's key."""
    repeat: int
    failed: str = ""
    """Why the run failed, in a sentence; empty where it went well. The figures of a failed run mean nothing."""
    run: str = ""
    """The run's folder, relative to the sweep's."""
    hosts: int = 1
    """That its ranks were on."""
    batch_size: int = 0
    """Samples in a global batch."""
    steps: int = 0
    steps_per_epoch: int = 0
    step_ms: float = 0.0
    compute_ms: float = 0.0
    """Forward and backward, which the workers share out."""
    serial_ms: float = 0.0
    """What every worker repeats: the optimiser's step, and the loop around it."""
    comm_ms: float = 0.0
    wait_ms: float = 0.0
    read_s: float = 0.0
    eval_s: float = 0.0
    total_s: float = 0.0
    bytes_per_step: float = 0.0
    messages_per_step: float = 0.0
    train_loss: float = 0.0
    test_loss: float = 0.0
    test_accuracy: float = 0.0
    max_rss_bytes: int = 0
    """Memory of the rank that took the most."""
    warnings: list[str] = []
    """What the run's record warns of."""
    energy_j: float | None = None
    """What the machine used while the run's process lived, where it tells."""
    others: Others | None = None
    """What other programs used of the cores while it trained, where the system tells."""


LEAST_COVERAGE_PCT = 90.0
"""Bounds that hold the true value less often than this are not shown."""


class Interval(BaseModel):
    """A value and an interval that holds the true one, mostly in 95 of 100 cases."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    value: float
    low: float
    high: float
    coverage_pct: float = 95.0
    """In how many of 100 cases: less than 95 for a median of few repeats."""

    @property
    def is_shown(self) -> bool:
        """Whether its bounds say something: one run has none, nor has a law at its bound, and few runs say little."""
        return self.is_known and self.low < self.high and math.isfinite(self.high - self.low)

    @property
    def is_known(self) -> bool:
        """Whether there were runs enough to tell its bounds."""
        return self.coverage_pct >= LEAST_COVERAGE_PCT


class Row(BaseModel):
    """All runs of a cell together: medians over the repeats."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    cell: Cell
    repeats: int
    """Runs that went well."""
    failed: str = ""
    """Why there is nothing to show, or less than was asked for."""
    oversubscribed: bool = False
    """More ranks than cores: such times say little about how the work scales."""
    step_ms: Interval | None = None
    samples_per_s: Interval | None = None
    epoch_s: float | None = None
    """Time of an epoch: steps of an epoch × time of a step."""
    speed_up: Interval | None = None
    """Against the baseline of the same batch and image size; in a weak sweep, of samples per second."""
    efficiency: Interval | None = None
    improvement_pct: float | None = None
    """The papers' performance improvement: (T1 − Tn) / T1 × 100; in a weak sweep, of the time per sample."""
    karp_flatt: Interval | None = None
    """Serial fraction that the speed-up tells of (Karp and Flatt 1990); None in a weak sweep, whose work grows with the
    workers, and where the speed-up is below 1 or beyond the workers."""
    compute_ms: float = 0.0
    serial_ms: float = 0.0
    comm_ms: float = 0.0
    wait_ms: float = 0.0
    read_s: float = 0.0
    eval_s: float = 0.0
    total_s: float = 0.0
    bytes_per_step: float = 0.0
    messages_per_step: float = 0.0
    train_loss: float = 0.0
    test_loss: float = 0.0
    test_accuracy: float = 0.0
    max_rss_bytes: int = 0
    energy_j: float | None = None
    others: Others | None = None
    """What other programs used of the cores during the run that was disturbed as much as the median."""


class Fit(BaseModel):
    """A law of scaling, fitted to the rows of one series."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    law: Literal["amdahl", "gustafson", "usl"]
    series: str
    batch_size: int | Literal["full"]
    """The baseline's batch."""
    image_size: int
    parameters: dict[str, Interval]
    """`serial` of Amdahl and Gustafson; `contention`, `coherency` and `rate` of the Universal Scalability Law."""
    best_workers: Interval | None = None
    """Where adding a worker stops helping; None where it never does by this law, up to `MOST_WORKERS`."""
    error_pct: float
    """Root mean square of the relative residuals."""

    @property
    def describes(self) -> bool:
        """Whether the law describes what was measured: it errs little, is not at its bound, and is known narrowly."""
        return self.error_pct < LARGE_ERROR_PCT and not self.is_slower and not self.is_vague

    @property
    def is_slower(self) -> bool:
        """Whether all is serial by this law, as for workers that are slower together than one alone."""
        serial = self.parameters.get("serial")
        return serial is not None and serial.value >= BOUND

    @property
    def is_vague(self) -> bool:
        """Whether the runs leave open which share it has."""
        shares = [p for name, p in self.parameters.items() if name != "rate"]
        return any(p.high - p.low >= WIDE or not p.is_known for p in shares)


class LostShare(BaseModel):
    """Percent of a step's time that went to one cause instead of work done; below 0 for a gain."""

    cause: Cause
    percent: float


class Remedy(BaseModel):
    """What to do about a cause, and what it would bring."""

    cause: Cause
    sentence: str
    gain_pct: float
    """Predicted growth of samples per second."""
    command: str = ""
    """The options to try it with, such as `--sync overlap`."""


class Finding(BaseModel):
    """Where the lost percents of one row went: the parts sum up to 100 − efficiency."""

    row: str
    """The key of the row's cell."""
    headline: str
    parts: list[LostShare]
    sentences: list[str]
    remedies: list[Remedy]


@with_field_docs
class SweepRecord(BaseModel):
    """One sweep's result."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    kind: Kind
    status: Literal["complete", "interrupted"]
    task: str
    command: str
    """What to type to run it again."""
    started: str
    wall_s: float
    repeats: int
    steps: int
    cells: list[Cell]
    measures: list[Measure]
    rows: list[Row]
    """One for the baseline and each cell; probes have none."""
    fits: list[Fit]
    findings: list[Finding]
    warnings: list[str] = []
    """Why runs of several workers did not give the answer of one."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    budget: str = ""
    """Time that the sweep was to take; empty where steps and repeats were given instead."""
    notes: list[str] = []
    """What was left out to keep to the budget."""


class SweepDir(Folder[SweepRecord]):
    """The folder of one sweep."""

    kind = "sweep"
    record_name = "sweep's record"
    record_class = SweepRecord
    record_file = "sweep.json"
    dated_by = ("sweep.toml", record_file)

    @property
    def toml(self) -> Path:
        """What was asked for, to go on with a sweep that was stopped."""
        return self.path / "sweep.toml"

    @property
    def measures(self) -> Path:
        """One JSON object a line for each run that has ended; written as they end."""
        return self.path / "measures.jsonl"

    @property
    def runs(self) -> Path:
        """The folders of the runs."""
        return self.path / "runs"

    @property
    def report(self) -> Path:
        """The report to open in a browser; `report.csv`, `report.md` and pictures stand beside it."""
        return self.path / "report.html"
