"""What came out of a run, and the folder that keeps it. Needs neither torch nor MPI."""

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from manyhands.config import RunConfig
from manyhands.errors import UserError, check, unknown


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
    ranks: list[RankRecord]
    hardware: dict[str, Any]
    versions: dict[str, str]
    config: RunConfig


class Pulse(BaseModel):
    """How a run is doing: what the progress bar shows."""

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None
    samples_per_s: float
    eta_s: float
    compute_s: float
    comm_s: float
    wait_s: float


@dataclass(frozen=True)
class RunDir:
    """The folder of one run: `run.toml`, `record.json`, `steps.jsonl`, `model.safetensors`, checkpoints."""

    path: Path

    @property
    def toml(self) -> Path:
        """The settings, to run again with `--config`."""
        return self.path / "run.toml"

    @property
    def record(self) -> Path:
        """The result."""
        return self.path / "record.json"

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
    def checkpoints(self) -> Path:
        """The checkpoints."""
        return self.path / "checkpoints"

    @property
    def live(self) -> Path:
        """Where ranks and supervisor meet while the run goes on; gone afterwards."""
        return self.path / "live"

    def read(self) -> RunRecord | None:
        """Return the record, or None where there is none that can be read."""
        try:
            return RunRecord.model_validate_json(self.record.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None


def new_id(config: RunConfig) -> str:
    """Name a run by its time, task and workers, and four letters that keep it unique."""
    stem = Path(config.task.partition(":")[0]).stem
    many = f"{config.workers}x{config.threads}" if config.threads > 1 else str(config.workers)
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{config.engine}{many}-{secrets.token_hex(2)}"


def open_run(run: RunDir, config: RunConfig) -> None:
    """Make the run's folder and write its settings; a folder that cannot be written is a user error."""
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        write_atomically(run.toml, config.to_toml())
    except OSError as error:
        raise UserError(f"cannot write to --out '{run.path.parent}': {error.strerror}") from None


def write_atomically(path: Path, text: str) -> None:
    """Write beside, flush, then rename, so that a reader sees the old file or the new one, whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")  # several threads may write
    with open(beside, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(beside, path)


def read_events(folder: str, server: int) -> list[dict[str, int]]:
    """Read in which order a server of an earlier run took its messages."""
    path = RunDir(Path(folder)).events(server)
    if not path.is_file():
        raise UserError(f"there is no '{path}' to replay: it is left by a run with async-server and as many servers")
    try:
        events = [json.loads(line) for line in path.read_text().splitlines()]
        return [{"worker": int(event["worker"]), "staleness": int(event["staleness"])} for event in events]
    except (ValueError, TypeError, KeyError):
        raise UserError(f"'{path}' is damaged: its lines are not events of a server") from None


def list_runs(out: Path) -> list[RunDir]:
    """Return the runs under this folder, the one started or resumed last at the end."""
    files = sorted(out.glob("*/run.toml"), key=lambda p: p.stat().st_mtime_ns)
    return [RunDir(file.parent) for file in files]


def find_run(out: Path, name: str) -> RunDir:
    """Return the run with this id, unique part of an id, or path; `last` is the newest."""
    if (Path(name) / "run.toml").is_file():
        return RunDir(Path(name))
    runs = list_runs(out)
    check(bool(runs), f"there are no runs under '{out}'")
    if name == "last":
        return runs[-1]
    found = [r for r in runs if name == r.path.name] or [r for r in runs if name in r.path.name]
    check(len(found) <= 1, f"'{name}' fits {len(found)} runs under '{out}'; give more of the id")
    if not found:
        unknown(f"run under '{out}' named", name, [r.path.name for r in runs[-5:]])
    return found[0]
