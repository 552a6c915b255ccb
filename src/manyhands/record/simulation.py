"""Predictions of a simulation, and their comparison with runs. Needs neither torch nor MPI."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, computed_field

from manyhands.record.store import Folder, read_lines
from manyhands.record.virtual import Method as TrainingMethod
from manyhands.record.virtual import VirtualPoint

Method = Literal["events", "closed form"]
"""How a row was predicted: by running the strategy's code on virtual ranks, or by a formula."""
Unit = Literal["nodes", "workers"]
"""Unit in which the user gave the sizes of a simulation."""


@dataclass(slots=True)
class Estimate:
    """A value and its 90 % interval; a plain dataclass, since a record has very many of them."""

    value: float
    low: float
    high: float

    def holds(self, measured: float) -> bool:
        """Return whether a measured value lies within the interval."""
        return self.low <= measured <= self.high

    def scaled(self, factor: float) -> "Estimate":
        """Return value and bounds multiplied by `factor`."""
        return Estimate(factor * self.value, factor * self.low, factor * self.high)


class Counted(BaseModel):
    """A row whose size the user gave as a number of nodes or of workers."""

    by: Unit = "nodes"
    """The unit that the user gave, which tables and pages show."""
    nodes: int
    """The given number of nodes, or the nodes that the given workers and their servers occupy."""
    workers: int
    servers: int = 0

    @property
    def number(self) -> int:
        """The size in the user's unit."""
        return self.workers if self.by == "workers" else self.nodes

    @property
    def many(self) -> str:
        """The size with its unit: 1 node, 1,024 workers."""
        return f"{self.number:,} {self.by.removesuffix('s') if self.number == 1 else self.by}"


class SimulationRow(Counted):
    """Predicted times of one strategy at one size. The batch is global; milliseconds are means of a step."""

    sync: str
    batch_size: int
    method: Method
    step_ms: Estimate
    compute_ms: float
    serial_ms: float
    """Work that every worker repeats: the optimiser's step, the loop, and the strategy's own operations on weights."""
    comm_ms: float
    wait_ms: float
    epoch_s: Estimate
    """Seconds of an epoch, including failures of the cluster's nodes."""
    speed_up: Estimate
    """Samples per second, relative to one worker alone with batch `alone_batch`."""
    efficiency: Estimate
    """Speed-up as a share of the ranks, servers included."""
    cost: Estimate | None = None
    """Cost of an epoch; None where the cluster has no price."""
    failures: float = 0.0
    """Expected number of failures in an epoch."""


class TrainedRow(Counted):
    """One strategy that was trained as on that many nodes; its seconds are virtual, but for `wall_s`."""

    sync: str
    batch_size: int
    lr: float
    epochs: float
    steps: int
    method: TrainingMethod
    """How it was computed on this machine."""
    test_accuracy: float | None
    test_loss: float
    time_s: Estimate
    """Seconds of the whole training, including failures of the cluster's nodes."""
    target_s: Estimate | None = None
    """Seconds to the first evaluation with the target accuracy; None where it is not reached, or there is no target."""
    target_cost: Estimate | None = None
    """Cost of `target_s`; None where the cluster has no price."""
    points: list[VirtualPoint]
    """Loss and accuracy at each evaluation; their seconds do not include failures."""
    staleness: dict[str, float] = {}
    """Of an asynchronous run: statistics of the age, in updates, of the weights that gradients were computed for."""
    wall_s: float
    """Real seconds on this machine."""
    weights_sha256: str
    folder: str
    """Folder of the training within the simulation's."""

    def time_at(self, point: VirtualPoint) -> Estimate:
        """Return the time of an evaluation, including its share of the failures in `time_s`."""
        last_s = self.points[-1].time_s or 1.0
        bounds_s = self.time_s.value, self.time_s.low, self.time_s.high
        return Estimate(*(point.time_s * (bound_s / last_s) for bound_s in bounds_s))


class SimulationRecord(BaseModel):
    """The result of `manyhands simulate`."""

    id: str
    status: Literal["complete", "interrupted"] = "complete"
    task: str
    command: str
    """The command line that runs it again."""
    made: str
    wall_s: float
    engine: str
    """The engine whose calls were calibrated."""
    device: str = "cpu"
    """Where workers compute: `cpu`, or `cuda` for a GPU each."""
    cluster: str
    """Name of a built-in cluster, a file, or `this host`."""
    seed: int
    steps: int
    """Simulated steps of each row that was predicted by events."""
    parameters: int
    weight_bytes: int
    samples: int
    currency: str = ""
    alone_ms: Estimate
    """Step time of one worker alone, with batch `alone_batch`."""
    alone_batch: int
    rows: list[SimulationRow]
    target_accuracy: float | None = None
    trained: list[TrainedRow] = []
    """Results of `--train`."""
    failed: dict[str, str] = {}
    """Reason of each training that failed."""
    warnings: list[str] = []
    """Why trainings of several workers differ from that of one."""
    machine: str
    """The machine that was calibrated."""
    calibrated: str
    circumstances: str = ""
    """Age of the calibration, the load under which it was made, its own errors, and the machine's speed since."""
    versions: dict[str, str]

    @property
    def by(self) -> Unit:
        """The unit in which the user gave the sizes."""
        return self.rows[0].by if self.rows else "nodes"


class SimulationDir(Folder[SimulationRecord], kind="simulation", record=SimulationRecord):
    """The folder of one simulation."""


class CodecTimes(BaseModel):
    """Times and size of a codec on the gradients of one network, with one thread."""

    code_bytes: int
    encode_s: float
    decode_s: float


class Parts(BaseModel):
    """Measurements of parts of a step, which supplement a calibration."""

    made: str
    """Time of the calibration that it supplements."""
    ready: dict[str, list[tuple[float, int, int]]] = {}
    """By task and rows: the share of a pass after which a span of the gradients is final, and the span."""
    codecs: dict[str, CodecTimes] = {}


class Validation(BaseModel):
    """One prediction and its later measurement."""

    id: str
    """Id of the validation, whose folder keeps the prediction and the runs."""
    task: str
    engine: str
    device: str = "cpu"
    hosts: int = 1
    """Hosts of the ranks; if several, the links between them were calibrated."""
    workers: int
    servers: int = 0
    sync: str
    batch_size: int
    predicted: str
    """Time at which the prediction was stored, before the first run."""
    measured: str
    """Time at which the last run ended."""
    method: Method
    predicted_ms: Estimate
    """Step time."""
    measured_ms: list[float]
    """Step time after warm-up, of each run that succeeded."""
    median_ms: float
    error_pct: float
    """Relative error of the prediction against the median of the runs; negative where it is too low."""
    oversubscribed: bool
    """Whether there were more ranks than cores or GPUs, which makes times unreliable."""
    steps: int
    failed: list[str] = []
    """Reasons of the runs that failed."""
    machine: str
    calibrated: str
    circumstances: str = ""
    """Age of the calibration, the load under which it was made, its own errors, and the machine's speed since."""
    versions: dict[str, str]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def held(self) -> int:
        """Number of runs that lie within the prediction's interval."""
        return sum(self.predicted_ms.holds(ms) for ms in self.measured_ms)

    @property
    def holds_median(self) -> bool:
        """Whether the median of the runs lies within the prediction's interval."""
        return self.predicted_ms.holds(self.median_ms)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def noise_pct(self) -> float | None:
        """Half the distance between the quartiles of the runs over their median, in per cent; None for a single run."""
        if len(self.measured_ms) < 2:
            return None
        low, middle, high = statistics.quantiles(self.measured_ms, n=4, method="inclusive")
        return 100 * (high - low) / 2 / middle


class ValidationRecord(BaseModel):
    """The result of `manyhands validate`: every configuration predicted, then measured."""

    id: str
    status: Literal["complete", "interrupted"] = "complete"
    task: str
    command: str
    rows: list[Validation]
    failed: dict[str, str] = {}
    """Reason of each configuration of which no run succeeded."""
    median_error_pct: float | None = None
    """Median absolute error of the rows whose ranks had a core each."""
    held: int = 0
    of: int = 0
    """Number of runs of those rows, of which `held` lie within their prediction's interval."""


LEDGER = "validations.jsonl"
"""File in the folder of all validations: one line for each configuration that was predicted and run."""


class ValidationDir(Folder[ValidationRecord], kind="validation", record=ValidationRecord):
    """The folder of one validation."""


def read_validations(path: Path) -> list[Validation]:
    """Return all validations in a file of JSON lines; an incomplete last line is ignored."""
    return read_lines(path, Validation, "a validation", blank_lines=True)
