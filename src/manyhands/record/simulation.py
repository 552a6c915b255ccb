"""What a simulation predicts, and how predictions compare with runs. Needs neither torch nor MPI."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

from manyhands.record.store import Folder, read_lines
from manyhands.record.virtual import Method as TrainingMethod
from manyhands.record.virtual import VirtualPoint

Method = Literal["events", "closed form"]
"""How a row was predicted: by running the strategy's own code on virtual ranks, or by a formula."""
Unit = Literal["nodes", "workers"]
"""What a simulation is asked for by."""


@dataclass(slots=True)
class Estimate:
    """A value, and the bounds between which it lies with a probability of 90 %; no model, since records have many."""

    value: float
    low: float
    high: float

    def holds(self, measured: float) -> bool:
        """Tell whether a measured value lies between the bounds."""
        return self.low <= measured <= self.high

    def scaled(self, factor: float) -> "Estimate":
        """Return so many times as much, as sure as it is."""
        return Estimate(factor * self.value, factor * self.low, factor * self.high)


class Counted(BaseModel):
    """What was asked for by a number of nodes, or of workers."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    by: Unit = "nodes"
    """Which of the two: tables and pages count in it."""
    nodes: int
    """As many as were asked for, with workers on each; or by workers, as many as these and the servers take."""
    workers: int
    servers: int = 0

    @property
    def number(self) -> int:
        """How many were asked for."""
        return self.workers if self.by == "workers" else self.nodes

    @property
    def many(self) -> str:
        """The same in words: 1 node, 1,024 workers."""
        return f"{self.number:,} {self.by.removesuffix('s') if self.number == 1 else self.by}"


class SimulationRow(Counted):
    """One strategy on so many nodes. The milliseconds are of a step, on average over the workers."""

    sync: str
    batch_size: int
    """The global batch."""
    method: Method
    step_ms: Estimate
    compute_ms: float
    """Forward and backward."""
    serial_ms: float
    """What every worker repeats: the optimiser's step, the loop, and what the strategy does with the weights."""
    comm_ms: float
    wait_ms: float
    epoch_s: Estimate
    """With failures, where the cluster has some."""
    speed_up: Estimate
    """Samples per second, against one worker alone with the batch of one."""
    efficiency: Estimate
    cost: Estimate | None = None
    """Of an epoch, where the cluster has a price."""
    failures: float = 0.0
    """Expected in an epoch."""


class TrainedRow(Counted):
    """One strategy that was really trained as so many nodes would; its seconds are those nodes', not this machine's."""

    sync: str
    batch_size: int
    """The global batch."""
    lr: float
    """Learning rate; with a warm-up or a decay, the highest."""
    epochs: float
    steps: int
    method: TrainingMethod
    """How it was computed here."""
    test_accuracy: float
    """At the end."""
    test_loss: float
    time_s: Estimate
    """Of the whole training, with failures, where the cluster has some."""
    target_s: Estimate | None = None
    """Until the first evaluation that shows the accuracy asked for; None where none does, or none was asked for."""
    target_cost: Estimate | None = None
    """Of that time, where the cluster has a price."""
    points: list[VirtualPoint]
    """Loss and accuracy at each evaluation; their seconds leave failures out."""
    staleness: dict[str, float] = {}
    """Of an asynchronous run: how many updates old the weights were for which gradients were computed."""
    wall_s: float
    """Seconds that it took here."""
    weights_sha256: str
    folder: str
    """What was kept of it, within the simulation's folder."""

    def time_at(self, point: VirtualPoint) -> Estimate:
        """Return when an evaluation was made, with failures, as the whole training's time has them."""
        whole, last_s = self.time_s, self.points[-1].time_s or 1.0
        return Estimate(*(point.time_s * (each / last_s) for each in (whole.value, whole.low, whole.high)))


class SimulationRecord(BaseModel):
    """One simulation's result."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    status: Literal["complete", "interrupted"] = "complete"
    task: str
    command: str
    """What to type to do it again."""
    made: str
    """When it was predicted."""
    wall_s: float
    engine: str
    """Whose calls were calibrated."""
    cluster: str
    """A ready one's name, a file, or `this host`."""
    seed: int
    steps: int
    """Steps of each row that were simulated, where it was by events."""
    parameters: int
    weight_bytes: int
    samples: int
    currency: str = ""
    alone_ms: Estimate
    """Step of one worker alone, with the batch of one."""
    alone_batch: int
    rows: list[SimulationRow]
    target_accuracy: float | None = None
    trained: list[TrainedRow] = []
    """Where the strategies were not only timed."""
    failed: dict[str, str] = {}
    """Trainings that failed, and why."""
    warnings: list[str] = []
    """Why trainings of several workers did not give the answer of one."""
    machine: str
    """The machine that was calibrated."""
    calibrated: str
    """When it was calibrated."""
    versions: dict[str, str]

    @property
    def by(self) -> Unit:
        """What its rows were asked for by."""
        return self.rows[0].by if self.rows else "nodes"


class SimulationDir(Folder[SimulationRecord]):
    """The folder of one simulation."""

    kind = "simulation"
    record_name = "simulation's record"
    record_class = SimulationRecord
    record_file = "simulation.json"
    dated_by = (record_file,)


class CodecTimes(BaseModel):
    """What a codec takes for the gradients of one network, with one thread."""

    code_bytes: int
    encode_s: float
    decode_s: float


class Parts(BaseModel):
    """What was measured of parts of a step, beside a calibration."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    made: str
    """When the calibration was made to which it belongs."""
    ready: dict[str, list[tuple[float, int, int]]] = {}
    """By task and rows: from which share of a pass on which span of the gradients is final."""
    codecs: dict[str, CodecTimes] = {}
    """By task and codec."""


class Validation(BaseModel):
    """One prediction, and what was measured afterwards."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    """Of the validation that it is part of, whose folder keeps the prediction and the runs."""
    task: str
    engine: str
    hosts: int = 1
    """That the ranks were on; where they are several, the links between them were calibrated."""
    workers: int
    servers: int = 0
    sync: str
    batch_size: int
    predicted: str
    """When the prediction was written down, which was before the first run."""
    measured: str
    """When the last run had ended."""
    method: Method
    predicted_ms: Estimate
    """Step time."""
    measured_ms: list[float]
    """Of each run that went well, its step time once it had warmed up."""
    median_ms: float
    error_pct: float
    """By how much the prediction is above the median of the runs; below 0 where it is less."""
    held: bool
    """Whether the median lies within the prediction's interval."""
    oversubscribed: bool
    """More ranks than cores: such times say little."""
    steps: int
    failed: list[str] = []
    """Why runs failed, where some did."""
    machine: str
    calibrated: str
    versions: dict[str, str]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def noise_pct(self) -> float | None:
        """The standard deviation of the runs, over their mean; None of a single run, which tells nothing."""
        if len(self.measured_ms) < 2:
            return None
        return 100 * statistics.stdev(self.measured_ms) / statistics.mean(self.measured_ms)


class ValidationRecord(BaseModel):
    """One validation: every configuration predicted, then measured."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    status: Literal["complete", "interrupted"] = "complete"
    task: str
    command: str
    rows: list[Validation]
    failed: dict[str, str] = {}
    """Configurations of which no run went well, and why."""
    median_error_pct: float | None = None
    """Of the rows whose ranks had a core each."""
    held: int = 0
    of: int = 0
    """How many of these rows lie within their intervals, of how many."""


LEDGER = "validations.jsonl"
"""In the folder of all validations: one line for each configuration that was ever predicted and run."""


class ValidationDir(Folder[ValidationRecord]):
    """The folder of one validation."""

    kind = "validation"
    record_name = "validation's record"
    record_class = ValidationRecord
    record_file = "validation.json"
    dated_by = (record_file,)


def read_validations(path: Path) -> list[Validation]:
    """Return all that was validated so far; a last line that was cut off is left out."""
    return read_lines(path, Validation, "a validation", blank_lines=True)
