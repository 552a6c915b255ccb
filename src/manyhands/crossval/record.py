"""The result of a cross-validation. Needs neither torch nor MPI."""

import math
from typing import Any

from pydantic import BaseModel, ConfigDict

from manyhands.config import RunConfig
from manyhands.spec import with_field_docs

CONFIDENCE = 0.95


class FoldScore(BaseModel):
    """The score of one fold: of a model trained on the other folds and tested on this one."""

    node: int
    fold: int
    train_samples: int
    samples: int
    """Samples of the fold, on which the model was not trained."""
    steps: int
    accuracy: float | None
    loss: float
    metrics: dict[str, float] = {}
    """The task's own figures."""
    seconds: float
    """Training time; an equal share for folds trained as one batched model."""
    stacked: bool
    """Whether it was trained in a batched model."""
    weights_sha256: str


class HoldOut(BaseModel):
    """The mean of all models' weights, tested on the test split, which no fold contains."""

    accuracy: float | None
    loss: float
    metrics: dict[str, float] = {}
    """The task's own figures."""
    train_accuracy: float | None
    train_loss: float
    weights_sha256: str


@with_field_docs
class CrossvalRecord(BaseModel):
    """The result of one cross-validation.

    Folds are not independent: any two share most of their training samples. The interval is corrected for it (Nadeau
    and Bengio 2003); the usual one, which is not, holds in 88 to 95 % of cases instead of 95 %.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    task: str
    engine: str
    sync: str
    workers: int
    num_folds: int
    nodes: int
    """Nodes over which the data was split; 0 if it was not."""
    folds: list[FoldScore]
    accuracy: float | None
    """Mean over the folds; None where the targets are no classes."""
    interval: float | None
    """Half the width of the 95 % confidence interval of the mean accuracy (Student's t over the folds,
    corrected for the training samples that they share)."""
    loss: float
    metrics: dict[str, float] = {}
    """Means of the task's own figures over the folds."""
    hold_out: HoldOut | None = None
    """The averaged model on the test split, where the data was split over nodes."""
    total_s: float
    """Seconds from when every worker has the data to when the last one is done."""
    wall_s: float
    """`total_s` with start-up of the workers and reading the data."""
    longest_node_s: float
    """Training time of the slowest node: the duration if every node had its own worker."""
    baseline_s: float | None = None
    """`total_s` of one worker (and one node) for the same folds."""
    speed_up: float | None = None
    improvement_pct: float | None = None
    """The paper's performance improvement, (T1 - Tn) / T1 x 100."""
    longest_node_improvement_pct: float | None = None
    """The same with the time of the slowest node as Tn."""
    warnings: list[str] = []
    """Why folds that several workers train together differ from those of one worker."""
    bit_equal: bool | None = None
    """Whether accuracy, loss and weights of every fold are bit-equal to those of one worker."""
    max_loss_difference: float | None = None
    """Largest relative difference of a fold's loss from that of one worker."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    config: RunConfig

    def against(self, baseline: "CrossvalRecord") -> "CrossvalRecord":
        """Return the record with its comparison to one worker's; of scores only where the folds are the same."""
        update: dict[str, Any] = {
            "baseline_s": baseline.total_s,
            "speed_up": baseline.total_s / self.total_s,
            "improvement_pct": improvement(baseline.total_s, self.total_s),
            "longest_node_improvement_pct": improvement(baseline.longest_node_s, self.longest_node_s),
        }
        if len(self.folds) == len(baseline.folds):
            scores = {"accuracy", "loss", "weights_sha256"}
            pairs = list(zip(self.folds, baseline.folds, strict=True))
            update["bit_equal"] = all(a.model_dump(include=scores) == b.model_dump(include=scores) for a, b in pairs)
            update["max_loss_difference"] = max(abs(a.loss - b.loss) / max(abs(b.loss), 1e-300) for a, b in pairs)
        return self.model_copy(update=update)


class CrossvalTable(BaseModel):
    """Cross-validations over numbers of nodes and folds; the first number of nodes is the baseline of the others."""

    id: str
    nodes: list[int]
    folds: list[int]
    cells: list[CrossvalRecord]


def improvement(one_s: float, many_s: float) -> float:
    """Return the paper's performance improvement in per cent."""
    return (one_s - many_s) / one_s * 100


def half_interval(values: list[float], num_folds: int) -> float | None:
    """Return half the width of the 95 % confidence interval of the mean over folds; None for a single value.

    `values` has `num_folds` folds of one node after the other; those of different nodes share nothing. Each fold's test
    samples are 1 / (folds − 1) of those that it was trained on, which is the correction for a node.
    """
    from scipy.stats import t  # takes a second to import

    n = len(values)
    if n < 2:
        return None
    mean = sum(values) / n
    shared = num_folds / n / (num_folds - 1) if num_folds > 1 else 0.0
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    return float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * math.sqrt(variance * (1 / n + shared))
