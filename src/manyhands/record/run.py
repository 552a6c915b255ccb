"""The result of a run, and the folder that keeps it. Needs neither torch nor MPI."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from manyhands.config import RunConfig
from manyhands.errors import UserError
from manyhands.record.files import write_atomically
from manyhands.record.store import FileIn, Folder, new_name, stem_of, writing_below
from manyhands.spec import with_field_docs


class Quantiles(BaseModel):
    """Median and 90th percentile."""

    median: float
    p90: float


class RankSteps(BaseModel):
    """A worker's steps after warm-up."""

    rank: int
    host: str
    rows: int
    """Its rows of a global batch."""
    compute_ms: float
    """Mean time of the forward and backward pass."""
    median_ms: float
    """Median of it over the steps, which a few long ones do not change."""
    sd_ms: float
    """Standard deviation of it."""
    gather_ms: float
    """Part of `compute_ms`: gathering the rows from the data."""
    serial_ms: float
    starved_ms: float
    """Time in which it could have run but had no core, whatever it was doing; 0 where the system does not tell."""
    last: float
    """Share of the steps with an exchange in which it was the last to arrive, so that the others waited for it."""


class RankRecord(BaseModel):
    """Seconds and memory of one rank."""

    rank: int
    role: Literal["worker", "server"] = "worker"
    host: str
    compute_s: float
    serial_s: float = 0.0
    """Part of `compute_s` that every worker repeats: the optimiser's step and the loop around it."""
    data_s: float = 0.0
    """Part of `compute_s` in which it waited for data: gathered rows, or read samples."""
    comm_s: float
    wait_s: float
    max_rss_bytes: int
    notes: dict[str, float] = {}
    """Figures that the strategy reports, such as the staleness of the gradients that a server applied."""
    steady: RankSteps | None = None
    """A worker's steps after warm-up; None for a server, and in records of older versions."""


class Steady(BaseModel):
    """Times of a step after warm-up: means over steps and workers, of which `step_ms` is the sum."""

    steps: int
    """Steps that were averaged: all but the first few."""
    step_ms: float
    compute_ms: float
    """Forward and backward, which the workers share out."""
    serial_ms: float
    """Work that every worker repeats: the optimiser's step and the loop around it. On a GPU, whose kernels are queued,
    it cannot be told from the forward and backward pass and is counted there."""
    comm_ms: float
    wait_ms: float
    gather_ms: float = 0.0
    """Part of `compute_ms`: waiting for the rows of a batch, gathered in memory or read sample by sample."""


class Others(BaseModel):
    """Use of the cores by other programs during a run, on the host where their share was the largest."""

    host: str
    cores: float
    """Cores used by other programs, on average over the run."""
    of: float
    """Cores that the run could use on that host."""
    wanted: int
    """Cores that the run itself could keep busy there: the threads of its ranks."""

    @property
    def disturbed(self) -> bool:
        """Whether other programs slowed the run: they used a large share of the cores, and more than it left idle."""
        return self.cores >= BUSY_SHARE * self.of and self.cores + self.wanted > self.of

    def __str__(self) -> str:
        return f"other programs used {self.cores:.1f} of {self.of:g} cores"


BUSY_SHARE = 0.1
"""Share of the cores that other programs may use without being reported."""


@with_field_docs
class EvaluationRecord(BaseModel):
    """The figures of one evaluation on the test data."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    step: int
    """Steps done."""
    epoch: float
    """Passes over the training data done, such as 1.5."""
    test_loss: float
    test_accuracy: float | None = None
    """Share of hits; None where the targets are no classes."""
    metrics: dict[str, float] = {}
    """The task's own figures by name."""


@with_field_docs
class RunRecord(BaseModel):
    """The result of one run.

    Seconds of compute, comm and wait are means over the workers, other seconds are those of rank 0; bytes and messages
    are sums over all ranks, including servers.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    status: Literal["complete", "interrupted"]
    task: str
    engine: str
    sync: str
    workers: int
    threads: int
    batch_size: int
    epochs: int
    steps: int
    steps_per_epoch: int = 0
    resumed_from: int
    """Step of the checkpoint from which this run was resumed; 0 for a new run."""
    seed: int
    device: str
    parameters: int
    samples: int
    train_loss: list[float]
    """Mean training loss of each epoch: of the losses of its steps, weighted by the rows of their batches.

    The loss of a step is that of its global batch: with `reduction="sum"` the sum over its rows, with `loss_weight`
    their weighted mean.
    """
    test_loss: float
    test_accuracy: float | None
    """Share of hits; None where the targets are no classes."""
    metrics: dict[str, float] = {}
    """The task's own figures of the test data, by name."""
    history: list[EvaluationRecord] = []
    """Every evaluation on the test data, in order."""
    best_step: int | None = None
    """Step of the evaluation whose weights were kept, with `keep_best`; None without."""
    stopped_early: bool = False
    """Whether the run ended before its last step, since `patience` evaluations had no better figure."""
    samples_per_s: float
    epoch_s: list[float]
    step_ms: Quantiles
    steady: Steady
    compute_s: float
    data_s: float = 0.0
    """Part of `compute_s`: waiting for data, which is gathered in memory, or read sample by sample."""
    by_sample: bool = False
    """Whether the data was read sample by sample."""
    comm_s: float
    """Time of the exchanges themselves: of each exchange, the time of the rank that waited least."""
    wait_s: float
    """Further time in exchanges: waiting for the slowest rank."""
    read_s: float
    eval_s: float
    total_s: float
    bytes_sent: int
    messages: int
    weights_sha256: str
    weights_missing: str = ""
    """Why the weights could not be written; empty if they were."""
    warnings: list[str] = []
    """Why the weights differ from those of one worker although the strategy is exact."""
    blas_threads: int = 0
    """Threads inside a worker's matrix products, on rank 0; 0 in records of older versions."""
    others: Others | None = None
    """Use of the cores by other programs meanwhile; None where the system does not tell."""
    ranks: list[RankRecord]
    hardware: dict[str, Any]
    versions: dict[str, str]
    config: RunConfig


@with_field_docs
class Pulse(BaseModel):
    """Progress of a run, as the progress bar shows it and `train(observe=…)` receives it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    step: int
    """Steps done."""
    steps: int
    """Steps of the whole run."""
    epoch: int
    """Epoch of the last step, counted from 1."""
    epochs: int
    """Epochs of the whole run."""
    loss: float
    """Mean training loss of the steps since the last pulse."""
    accuracy: float | None
    """Test accuracy at the last evaluation; None before the first, and where the targets are no classes."""
    metrics: dict[str, float] = {}
    """The task's own figures at the last evaluation."""
    samples_per_s: float
    """Training samples per second, averaged over the run so far."""
    eta_s: float
    """Seconds left at that speed."""
    compute_s: float
    """Seconds of computation on this rank."""
    data_s: float = 0.0
    """Part of them: waiting for data."""
    comm_s: float
    """Seconds of the exchanges themselves."""
    wait_s: float
    """Seconds that this rank waited for others in exchanges."""


class RunDir(Folder[RunRecord], kind="run", record=RunRecord, file="record.json", dated_by=("run.toml",)):
    """The folder of one run."""

    toml = FileIn("run.toml")
    """The settings, to run again with `--config`."""
    steps = FileIn("steps.jsonl")
    """Loss and milliseconds of each step, one JSON object a line."""
    model = FileIn("model.safetensors")
    """The trained weights."""
    weights = FileIn("weights.bin")
    """The weights after every step, kept for a comparison."""
    trace = FileIn("trace.json")
    """Timeline of some steps on every rank, from `--trace`; opens in Perfetto."""
    profile = FileIn("profile.json")
    """Time by function, from `manyhands profile`."""
    failure = FileIn("failure.json")
    """Why the run ended early."""
    checkpoints = FileIn("checkpoints")
    """Folder of the checkpoints."""
    live = FileIn("live")
    """Folder through which ranks and supervisor communicate during the run; removed afterwards."""

    def events(self, server: int) -> Path:
        """Return the file of the messages that a server of an asynchronous run applied, from which it is replayed."""
        return self.path / f"events-{server}.jsonl"


def new_id(config: RunConfig) -> str:
    """Return a unique name for a run: time, task, engine, workers and six random letters."""
    many = f"{config.workers}x{config.threads}" if config.threads > 1 else str(config.workers)
    return new_name(stem_of(config.task), f"{config.engine}{many}", letters=6)


def open_run(run: RunDir, config: RunConfig) -> None:
    """Make the folder of a run and write its settings; a folder that cannot be written is a user error."""
    run.make()
    with writing_below(run.path.parent):
        write_atomically(run.toml, config.to_toml())


def read_steps(run: RunDir) -> list[dict[str, float]]:
    """Return the lines of a finished run's steps, without those of its evaluations."""
    lines = [json.loads(line) for line in run.steps.read_text().splitlines()]
    return [line for line in lines if "step" in line]


def read_events(folder: str, server: int) -> list[dict[str, int]]:
    """Return the messages that a server of an earlier run applied, in their order."""
    path = RunDir(Path(folder)).events(server)
    if not path.is_file():
        raise UserError(f"there is no '{path}' to replay: it is left by a run with async-server and as many servers")
    try:
        events = [json.loads(line) for line in path.read_text().splitlines()]
        return [{"worker": int(event["worker"]), "staleness": int(event["staleness"])} for event in events]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise UserError(f"'{path}' is damaged: its lines are not events of a server") from None
