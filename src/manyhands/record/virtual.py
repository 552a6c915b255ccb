"""Results of training on n virtual nodes, against virtual time."""

from typing import Any, Literal

from pydantic import BaseModel

from manyhands.config import RunConfig

Method = Literal["one-worker", "stacked", "one-by-one"]


class VirtualPoint(BaseModel):
    """Loss and accuracy of a virtual run at one evaluation."""

    step: int
    epoch: float
    time_s: float
    """Virtual seconds from the beginning of the first step until the last worker had finished this step."""
    loss: float
    """Mean training loss since the previous evaluation."""
    test_loss: float
    accuracy: float | None
    """Share of the test samples that are classified correctly; None where the targets are no classes."""


class VirtualRecord(BaseModel):
    """The result of one run on n virtual nodes."""

    task: str
    sync: str
    nodes: int
    method: Method
    """How it was computed: by one worker on the global batches, which gives the same answer; with all n replicas in
    one batched model; or with the n replicas one after the other."""
    batch_size: int
    steps: int
    epochs: float
    seed: int
    parameters: int
    samples: int
    step_loss: list[float]
    """Training loss of each step, over the whole global batch."""
    step_end_s: list[float]
    """Virtual seconds until the last worker had finished each step."""
    points: list[VirtualPoint]
    """One for each evaluation; the last is at the end of the run."""
    test_loss: float
    test_accuracy: float | None
    time_s: float
    """Virtual seconds of the whole training, without evaluations."""
    staleness: dict[str, float] = {}
    """Of an asynchronous run: statistics of the age, in updates, of the weights that gradients were computed for."""
    warnings: list[str] = []
    """Why the weights differ from those of one worker although the strategy is exact."""
    wall_s: float
    """Real seconds on this machine."""
    weights_sha256: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    config: RunConfig

    def time_to(self, accuracy: float) -> float | None:
        """Return the virtual seconds to the first evaluation with at least this accuracy; None if there is none."""
        return next((point.time_s for point in self.points if (point.accuracy or 0.0) >= accuracy), None)
