"""What training on n virtual nodes gave: loss and accuracy against virtual time; and the gradient noise of a task."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from manyhands.config import RunConfig

Method = Literal["one-worker", "stacked", "one-by-one"]


class VirtualPoint(BaseModel):
    """The run at one evaluation."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    step: int
    epoch: float
    time_s: float
    """Virtual seconds since the first step began: when the last of the workers had made this step."""
    loss: float
    """Mean training loss since the evaluation before."""
    test_loss: float
    accuracy: float
    """Share of the test samples that the run's weights get right, if it ended here."""


class VirtualRecord(BaseModel):
    """One run on n nodes that are not there."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    task: str
    sync: str
    nodes: int
    method: Method
    """How it was computed: one worker on the global batches, whose answer is that of n; all n replicas, batched; or
    all n, one after the other."""
    batch_size: int
    steps: int
    epochs: float
    seed: int
    parameters: int
    samples: int
    step_loss: list[float]
    """Training loss of each step, over the whole global batch."""
    step_end_s: list[float]
    """Virtual seconds after which the last of the workers had made each step."""
    points: list[VirtualPoint]
    """The run at each evaluation; the last is its end."""
    test_loss: float
    test_accuracy: float
    time_s: float
    """Virtual seconds of the whole training; evaluations take none."""
    staleness: dict[str, float] = {}
    """Of an asynchronous run: how many updates old the weights were for which gradients were computed."""
    warnings: list[str] = []
    """Why its weights are not those of one worker, where an exact strategy would give them."""
    wall_s: float
    """Real seconds that it took here."""
    weights_sha256: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    config: RunConfig

    def first_with(self, accuracy: float) -> VirtualPoint | None:
        """Return the first evaluation that shows at least this accuracy, or None where none does."""
        return next((point for point in self.points if point.accuracy >= accuracy), None)

    def time_to(self, accuracy: float) -> float | None:
        """Return the virtual seconds to the first evaluation that shows at least this accuracy."""
        found = self.first_with(accuracy)
        return None if found is None else found.time_s
