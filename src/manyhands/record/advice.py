"""The result of `manyhands advise`: how to reach an accuracy soonest, and why. Needs neither torch nor MPI."""

from typing import Literal

from pydantic import BaseModel

from manyhands.record.simulation import Estimate
from manyhands.record.store import Folder


class TargetTraining(BaseModel):
    """One training in a single process, until it reached the target accuracy or was given up."""

    sync: str
    workers: int
    """Number of workers whose weights were computed; with an exact strategy they are those of one worker."""
    batch_size: int
    lr: float
    warmup: float
    seed: int
    steps: int | None
    """Steps to the target accuracy; None if the training was given up."""
    made: int
    """Steps that were trained."""
    epochs: float
    accuracy: float
    """Best accuracy of all evaluations."""


class AdviceRow(BaseModel):
    """One configuration that reaches the accuracy. The batch is global; milliseconds are means of a step."""

    engine: str
    sync: str
    workers: int
    servers: int = 0
    nodes: int
    batch_size: int
    lr: float
    warmup: float
    """Epochs of warm-up."""
    steps: Estimate
    """Steps to the target accuracy."""
    steps_from: Literal["training", "noise scale"]
    """Whether `steps` comes from a training or is derived from the gradient noise scale."""
    samples_factor: float
    """Training samples needed, relative to one worker with the task's own batch."""
    step_ms: Estimate
    compute_ms: float
    serial_ms: float
    comm_ms: float
    wait_ms: float
    time_s: Estimate
    """Training time, without start-up, reading the data and testing."""
    speed_up: Estimate
    """Time to the accuracy of one worker with the task's own batch, over the time of this configuration."""
    efficiency: Estimate
    cost: Estimate | None = None
    """Cost of the whole training; None where the cluster has no price."""
    reasons: list[str] = []
    command: str = ""

    @property
    def exchange(self) -> float:
        """Share of a step that is communication and waiting."""
        return (self.comm_ms + self.wait_ms) / self.step_ms.value


class AdvicePoint(BaseModel):
    """One considered configuration, without intervals; fields as in `AdviceRow`."""

    engine: str
    sync: str
    workers: int
    batch_size: int
    steps: float
    step_ms: float
    time_s: float
    efficiency: float
    cost: float | None = None
    trained: bool
    """Whether `steps` comes from a training; otherwise from the gradient noise scale."""


class AdviceRecord(BaseModel):
    """The answer to one request for advice."""

    id: str = ""
    status: Literal["complete", "interrupted"] = "complete"
    """Interrupted: not all planned trainings were run."""
    task: str
    command: str
    """The command line that asks again."""
    made: str
    wall_s: float
    target_accuracy: float
    cluster: str
    """Name of a built-in cluster, a file, or `this host`."""
    currency: str = ""
    max_cost: float | None = None
    considered: int
    """Number of combinations of engine, strategy, workers and batch."""
    looked_at: list[AdvicePoint] = []
    """Combinations whose number of steps is known, the soonest first, including those that cost too much."""
    alone: AdviceRow
    """One worker with the task's own batch."""
    best: list[AdviceRow]
    """At most three, the soonest first; the best strategy and batch for each engine and number of workers."""
    critical_batch: float | None
    """Gradient noise scale in samples; None where only its lower bound is known."""
    critical_low: float
    critical_high: float | None
    noise: str
    """The noise scale in a sentence."""
    next: list[str]
    """What limits the best configuration."""
    doubts: list[str] = []
    """Observations that make the advice less certain, such as a seed that missed the accuracy."""
    measured: list[str]
    assumed: list[str]
    trainings: list[TargetTraining]
    machine: str
    """The machine that was calibrated."""
    calibrated: str
    circumstances: str = ""
    """Age of the calibration, the load under which it was made, its own errors, and the machine's speed since."""
    versions: dict[str, str]


class AdviceDir(Folder[AdviceRecord], kind="advice", record=AdviceRecord, name="advice"):
    """The folder of one piece of advice."""
