"""Metrics that cannot be computed are refused before any rank starts, each in one sentence that names it."""

import sys
from pathlib import Path

import pytest
import torch
import torchmetrics
from torch import nn

import manyhands
from manyhands import Metric, Task
from manyhands.errors import UserError
from manyhands.replica.criterion import Criterion, as_criterion
from manyhands.tasks.metrics import direction_of, means_accuracy

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))
from tiny import FLAT, stack


def _hidden(out, y):  # type: ignore[no-untyped-def]
    raise ValueError("no such thing")


def _late(out, y):  # type: ignore[no-untyped-def]
    return 1.0 if len(y) < 9 else float("nan")


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (_hidden, "metric 'm' failed: no such thing"),
        (lambda out: 1.0, "metric 'm' failed: .* takes 1 positional argument"),
        (lambda out, y: out, r"metric 'm' returned a tensor of shape \(2, 3\); it must be one number"),
        (lambda out, y: "good", "metric 'm' returned a str; it must be one number"),
        (lambda out, y: None, "metric 'm' returned None; it must be one number"),
        (torchmetrics.MeanSquaredError(), "metric 'm' failed: .*same shape"),
        (torchmetrics.MinMaxMetric(torchmetrics.MeanMetric()), "metric 'm', a MinMaxMetric, keeps its states in other"),
        (_late, "the metric 'm' of the test data is nan after step 10"),
    ],
)
def test_a_bad_metric_is_named(tmp_path: Path, metric: object, says: str) -> None:
    task = Task(model=stack, data=FLAT, lr=0.1, batch_size=10, metrics={"m": metric}, name="own")
    with pytest.raises(UserError, match=says):
        manyhands.train(task, out=tmp_path)


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"m": 3}, "metric 'm' must be a function .* got an int"),
        ({"m": torchmetrics.MeanSquaredError}, "metric 'm' is a class; give an instance of it"),
        ({"test_loss": lambda out, y: 1.0}, "cannot be named 'test_loss'"),
        ({3: lambda out, y: 1.0}, "the name of a metric must be a text, got 3"),
        ([lambda out, y: 1.0], "metrics must be a dict .* got a list"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Task(model=stack, metrics=metrics)  # type: ignore[arg-type]


def test_a_metric_says_what_is_better() -> None:
    with pytest.raises(UserError, match="better must be 'higher' or 'lower', got 'more'"):
        Metric(lambda out, y: 1.0, better="more")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be a function"):
        Metric(3, better="lower")  # type: ignore[arg-type]
    metrics = {"up": Metric(_late, "higher"), "torch": torchmetrics.MeanSquaredError()}
    assert direction_of("up", metrics) == "higher"
    assert direction_of("torch", metrics) == "lower"
    assert direction_of("test_loss", {}) == "lower"
    assert direction_of("test_accuracy", {}) == "higher"


def test_accuracy_is_of_classes() -> None:
    labels, scores = torch.tensor([0, 2]), torch.zeros(2, 3)
    own = Criterion(nn.functional.mse_loss)
    assert means_accuracy(as_criterion("cross-entropy"), 3, scores, labels)
    assert means_accuracy(own, 3, scores, labels)
    assert not means_accuracy(own, 0, scores, labels), "the data has no classes"
    assert not means_accuracy(own, 3, scores, labels.float())
    assert not means_accuracy(own, 3, scores[:, :1], labels), "one output is no score for each class"
    assert not means_accuracy(own, 3, {"logits": scores}, labels)
    assert not means_accuracy(own, 3, scores, None)
    assert means_accuracy(Criterion(nn.CrossEntropyLoss()), 0, scores, labels), "a loss of classes"
    entropy, places = as_criterion("cross-entropy"), torch.zeros(2, 3, 5)
    assert means_accuracy(entropy, 3, places, torch.zeros(2, 5, dtype=torch.int64)), "a class for each place"
    assert not means_accuracy(entropy, 3, scores, scores), "the targets are probabilities"
