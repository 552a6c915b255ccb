"""What came out of a run, and the folder that keeps it. Needs neither torch nor MPI."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from manyhands.config import RunConfig
from manyhands.errors import UserError
from manyhands.record.files import write_atomically
from manyhands.record.store import Folder, new_name, stem_of, writing_below
from manyhands.spec import with_field_docs


class Quantiles(BaseModel):
    """Median and 90th percentile."""

    median: float
    p90: float


class RankRecord(BaseModel):
    """Where one rank's time went."""

    rank: int
    role: Literal["worker", "server"] = "worker"
    host: str
    compute_s: float
    serial_s: float = 0.0
    """Of `compute_s`, what every worker repeats: the optimiser's step, and the loop around it."""
    comm_s: float
    wait_s: float
    max_rss_bytes: int
    notes: dict[str, float] = {}
    """What the strategy has to tell of this rank, such as the staleness of the gradients a server applied."""


class Steady(BaseModel):
    """A step of a run that has warmed up: means over steps and workers, of which `step_ms` is the sum."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    steps: int
    """Steps that were counted: all but the first few."""
    step_ms: float
    compute_ms: float
    """Forward and backward, which the workers share out."""
    serial_ms: float
    """What every worker repeats: the optimiser's step, and the loop around it. On a GPU, whose kernels are queued, it
    cannot be told from the forward and backward pass and is counted there."""
    comm_ms: float
    wait_ms: float


class Others(BaseModel):
    """What other programs used of the cores during a run, on the host where they took the largest share."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    host: str
    cores: float
    """Cores that they used, on average over the run."""
    of: float
    """Cores that the run could use there."""
    wanted: int
    """Cores that the run itself could keep busy there: threads of its ranks."""

    @property
    def disturbed(self) -> bool:
        """Whether they took what the run would have used: a large share, and more than it left idle."""
        return self.cores >= BUSY_SHARE * self.of and self.cores + self.wanted > self.of

    def __str__(self) -> str:
        return f"other programs used {self.cores:.1f} of {self.of:g} cores"


BUSY_SHARE = 0.1
"""The share of the cores that others may use without this being said."""


@with_field_docs
class RunRecord(BaseModel):
    """One run's result.

    Of compute, comm and wait the seconds are means over the workers, the others are rank 0's; bytes and messages are
    sums over all ranks, servers included.
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
    """Step of the checkpoint this run went on from; 0 for a fresh run."""
    seed: int
    device: str
    parameters: int
    samples: int
    train_loss: list[float]
    """Mean loss of each epoch, taken while training."""
    test_loss: float
    test_accuracy: float
    samples_per_s: float
    epoch_s: list[float]
    step_ms: Quantiles
    steady: Steady
    compute_s: float
    comm_s: float
    """What the exchanges themselves took: of each, the time of the rank that waited least."""
    wait_s: float
    """Time in exchanges beyond that: waiting for the slowest rank."""
    read_s: float
    eval_s: float
    total_s: float
    bytes_sent: int
    messages: int
    weights_sha256: str
    weights_missing: str = ""
    """Why the weights could not be written, where they could not."""
    warnings: list[str] = []
    """Why the weights are not those of one worker, where an exact strategy would give them."""
    blas_threads: int = 0
    """Threads inside a worker's matrix products, on rank 0; 0 where an older version wrote the record."""
    others: Others | None = None
    """What other programs used of the cores meanwhile; None where the system does not tell."""
    ranks: list[RankRecord]
    hardware: dict[str, Any]
    versions: dict[str, str]
    config: RunConfig


@with_field_docs
class Pulse(BaseModel):
    """How a run is doing: what the progress bar shows, and `train(observe=…)` is given."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    step: int
    """Steps that are done."""
    steps: int
    """Steps that the run will have."""
    epoch: int
    """The epoch that the last of these steps belongs to, counted from 1."""
    epochs: int
    """Epochs that the run will have."""
    loss: float
    """Mean training loss of the steps since the last pulse."""
    accuracy: float | None
    """Share of the test samples that were right at the last evaluation; None before the first."""
    samples_per_s: float
    """Training samples per second, on the whole run so far."""
    eta_s: float
    """Seconds that the rest will take at that speed."""
    compute_s: float
    """Seconds that this rank computed."""
    comm_s: float
    """Seconds that the exchanges themselves took."""
    wait_s: float
    """Seconds that this rank waited for others in them."""


class RunDir(Folder[RunRecord]):
    """The folder of one run: `run.toml`, `record.json`, `steps.jsonl`, `model.safetensors`, checkpoints."""

    kind = "run"
    record_name = "run's record"
    record_class = RunRecord
    record_file = "record.json"
    dated_by = ("run.toml",)

    @property
    def toml(self) -> Path:
        """The settings, to run again with `--config`."""
        return self.path / "run.toml"

    @property
    def steps(self) -> Path:
        """Loss and milliseconds of each step, a JSON object a line."""
        return self.path / "steps.jsonl"

    def events(self, server: int) -> Path:
        """What a server of an asynchronous run applied, in its order; such a run can be replayed from it."""
        return self.path / f"events-{server}.jsonl"

    @property
    def model(self) -> Path:
        """The trained weights."""
        return self.path / "model.safetensors"

    @property
    def weights(self) -> Path:
        """The weights after every step, where a comparison asked for them."""
        return self.path / "weights.bin"

    @property
    def trace(self) -> Path:
        """A timeline of some steps on every rank, to open in Perfetto, where `--trace` asked for it."""
        return self.path / "trace.json"

    @property
    def profile(self) -> Path:
        """Where the time went by functions, where this was a profile."""
        return self.path / "profile.json"

    @property
    def failure(self) -> Path:
        """Why the run ended early, where it could still say so."""
        return self.path / "failure.json"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints."""
        return self.path / "checkpoints"

    @property
    def live(self) -> Path:
        """Where ranks and supervisor meet while the run goes on; gone afterwards."""
        return self.path / "live"


def new_id(config: RunConfig) -> str:
    """Name a run by its time, task and workers, and six letters that keep it unique."""
    many = f"{config.workers}x{config.threads}" if config.threads > 1 else str(config.workers)
    return new_name(stem_of(config.task), f"{config.engine}{many}", letters=6)


def open_run(run: RunDir, config: RunConfig) -> None:
    """Make the run's folder and write its settings; a folder that cannot be written is a user error."""
    run.make()
    with writing_below(run.path.parent):
        write_atomically(run.toml, config.to_toml())


def read_events(folder: str, server: int) -> list[dict[str, int]]:
    """Read in which order a server of an earlier run took its messages."""
    path = RunDir(Path(folder)).events(server)
    if not path.is_file():
        raise UserError(f"there is no '{path}' to replay: it is left by a run with async-server and as many servers")
    try:
        events = [json.loads(line) for line in path.read_text().splitlines()]
        return [{"worker": int(event["worker"]), "staleness": int(event["staleness"])} for event in events]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise UserError(f"'{path}' is damaged: its lines are not events of a server") from None
