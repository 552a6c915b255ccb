"""What `manyhands advise` found: how to reach an accuracy soonest, and why. Needs neither torch nor MPI."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from manyhands.record.simulation import Estimate
from manyhands.record.store import Folder


class TargetTraining(BaseModel):
    """A training in one process that was followed until it reached the accuracy, or was given up."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    sync: str
    workers: int
    """Whose weights it has: with an exact strategy any number has those of one."""
    batch_size: int
    lr: float
    warmup: float
    seed: int
    steps: int | None
    """After which the accuracy was there; None where it was given up."""
    made: int
    """Steps that were made."""
    epochs: float
    accuracy: float
    """The best that was seen."""


class AdviceRow(BaseModel):
    """One way to the accuracy. The milliseconds are of a step, on average over the workers."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    engine: str
    sync: str
    workers: int
    servers: int = 0
    nodes: int
    batch_size: int
    """The global batch."""
    lr: float
    warmup: float
    """Epochs."""
    steps: Estimate
    """Until the accuracy is reached."""
    steps_from: Literal["training", "noise scale"]
    """Whether somebody trained so, or the noise of the gradient tells the steps."""
    samples_factor: float
    """How many times the samples that one worker with the task's own batch needs."""
    step_ms: Estimate
    compute_ms: float
    """Forward and backward."""
    serial_ms: float
    """What every worker repeats."""
    comm_ms: float
    wait_ms: float
    time_s: Estimate
    """Of the training; to start, read and test comes on top."""
    speed_up: Estimate
    """Against one worker with the task's own batch: how many times sooner the accuracy is reached."""
    efficiency: Estimate
    cost: Estimate | None = None
    """Of the whole training, where the cluster has a price."""
    reasons: list[str] = []
    command: str = ""
    """What to type."""

    @property
    def exchange(self) -> float:
        """The share of a step that goes to communication and waiting."""
        return (self.comm_ms + self.wait_ms) / self.step_ms.value


class AdvicePoint(BaseModel):
    """One of all the ways that were looked at, in short and without intervals."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    engine: str
    sync: str
    workers: int
    batch_size: int
    """The global batch."""
    steps: float
    """Until the accuracy is reached."""
    step_ms: float
    time_s: float
    efficiency: float
    cost: float | None = None
    trained: bool
    """Whether somebody trained so; if not, the noise of the gradient tells the steps."""


class AdviceRecord(BaseModel):
    """One piece of advice."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str = ""
    status: Literal["complete", "interrupted"] = "complete"
    """Interrupted: some trainings that should have been made were not."""
    task: str
    command: str
    """What to type to ask again."""
    made: str
    wall_s: float
    target_accuracy: float
    cluster: str
    """A ready one's name, a file, or `this host`."""
    currency: str = ""
    max_cost: float | None = None
    considered: int
    """Combinations of engine, strategy, workers and batch."""
    looked_at: list[AdvicePoint] = []
    """Those of which the steps are known, the soonest first; also what costs too much."""
    alone: AdviceRow
    """One worker with the task's own batch."""
    best: list[AdviceRow]
    """At most three, the soonest first; of each engine and number of workers, only its best strategy and batch."""
    critical_batch: float | None
    """The noise scale of the gradient, in samples; None where it is only known to be more than its lower end."""
    critical_low: float
    critical_high: float | None
    noise: str
    """The same in a sentence."""
    next: list[str]
    """What keeps the best from being better."""
    doubts: list[str] = []
    """What was seen that makes it less sure, such as a seed that did not get there."""
    measured: list[str]
    assumed: list[str]
    trainings: list[TargetTraining]
    machine: str
    """The machine that was calibrated."""
    calibrated: str
    versions: dict[str, str]


class AdviceDir(Folder[AdviceRecord]):
    """The folder of one piece of advice."""

    kind = "advice"
    record_name = "advice"
    record_class = AdviceRecord
    record_file = "advice.json"
    dated_by = (record_file,)
