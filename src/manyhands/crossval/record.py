"""What came out of a cross-validation. Needs neither torch nor MPI."""

import math
from typing import Any

from pydantic import BaseModel, ConfigDict

from manyhands.config import RunConfig
from manyhands.spec import with_field_docs

CONFIDENCE = 0.95


class FoldScore(BaseModel):
    """One fold: a model trained on the other folds and tested on this one."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    node: int
    fold: int
    train_samples: int
    samples: int
    """Samples in the fold, which this model never saw."""
    steps: int
    accuracy: float
    loss: float
    seconds: float
    """What its training took; of folds trained as one batched model, an equal share."""
    stacked: bool
    """Whether it was trained as one of a batch of models."""
    weights_sha256: str


class HoldOut(BaseModel):
    """The mean of all models' weights, tested on samples that no fold ever saw."""

    accuracy: float
    loss: float
    train_accuracy: float
    train_loss: float
    weights_sha256: str


@with_field_docs
class CrossvalRecord(BaseModel):
    """The result of one cross-validation.

    The interval takes the folds as independent, which they are not quite: any two share most of their training
    samples. It is the usual one, and a little too narrow.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    task: str
    engine: str
    sync: str
    workers: int
    num_folds: int
    nodes: int
    """Nodes that the data was cut over; 0 where it was not cut."""
    folds: list[FoldScore]
    accuracy: float
    """Mean over the folds."""
    interval: float | None
    """Half the width of the 95 % interval of the mean accuracy (Student's t over the folds)."""
    loss: float
    hold_out: HoldOut | None = None
    """The averaged model on the test split, where the data was cut over nodes."""
    total_s: float
    """From when every worker has the data and can begin to when the last is done."""
    wall_s: float
    """The same with starting the workers and reading the data."""
    longest_node_s: float
    """Training time of the slowest node: what it would take if every node had a worker of its own."""
    baseline_s: float | None = None
    """Time of one worker (and one node) for the same."""
    speed_up: float | None = None
    improvement_pct: float | None = None
    """The paper's performance improvement, (T1 - Tn) / T1 x 100."""
    longest_node_improvement_pct: float | None = None
    """The same with the time of the slowest node as Tn."""
    warnings: list[str] = []
    """Why folds that several workers train together have not the weights of one worker."""
    bit_equal: bool | None = None
    """Whether every fold's accuracy, loss and weights are those of one worker, to the last bit."""
    max_loss_difference: float | None = None
    """Largest difference of a fold's loss to that of one worker, relative to it."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    config: RunConfig

    def against(self, baseline: "CrossvalRecord") -> "CrossvalRecord":
        """Add what a comparison with one worker's record says; the scores only where the folds are the same."""
        update: dict[str, Any] = {
            "baseline_s": baseline.total_s,
            "speed_up": baseline.total_s / self.total_s,
            "improvement_pct": improvement(baseline.total_s, self.total_s),
            "longest_node_improvement_pct": improvement(baseline.longest_node_s, self.longest_node_s),
        }
        if len(self.folds) == len(baseline.folds):
            pairs = list(zip(self.folds, baseline.folds, strict=True))
            update["bit_equal"] = all(_bits(own) == _bits(other) for own, other in pairs)
            update["max_loss_difference"] = max(
                abs(own.loss - other.loss) / max(abs(other.loss), 1e-300) for own, other in pairs
            )
        return self.model_copy(update=update)


class CrossvalTable(BaseModel):
    """Cross-validations over numbers of nodes and folds; the first number of nodes is what the others are held to."""

    id: str
    nodes: list[int]
    folds: list[int]
    cells: list[CrossvalRecord]


def improvement(one_s: float, many_s: float) -> float:
    """Return the paper's performance improvement in per cent."""
    return (one_s - many_s) / one_s * 100


def half_interval(values: list[float]) -> float | None:
    """Return half the width of the 95 % interval of the mean; one value has none."""
    from scipy.stats import t  # takes a second to import

    n = len(values)
    if n < 2:
        return None
    mean = sum(values) / n
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    return float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * math.sqrt(variance / n)


def _bits(score: FoldScore) -> tuple[float, float, str]:
    return score.accuracy, score.loss, score.weights_sha256
