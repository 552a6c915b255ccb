"""Folds that are trained as one model have the scores of folds in turn, whatever the task; or they are not stacked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import manyhands
from manyhands import Metric, Task
from manyhands.cli.crossval import sentence
from manyhands.errors import UserError


def _with_penalty(output: Tensor, target: Tensor, network: nn.Module) -> Tensor:
    return F.cross_entropy(output, target) + 0.5 * sum(p.square().sum() for p in network.parameters())


def _padded(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, ignore_index=2)


TASK = Task(
    model=lambda data: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)),
    data="synthetic:samples=60,features=12,classes=3,test=23,seed=5",
    lr=0.1,
    batch_size=10,
    metrics={"loss again": Metric(F.cross_entropy, better="lower")},
)


@pytest.mark.parametrize(
    ("settings", "stacked"),
    [
        ({}, True),
        ({"loss": _with_penalty}, False),
        ({"loss": _padded, "loss_weight": lambda y: (y != 2).sum()}, False),
        ({"precision": "bf16", "lr": 2.0}, False),
    ],
)
def test_stacked_is_in_turn(settings: dict[str, Any], stacked: bool, tmp_path: Path) -> None:
    task = replace(TASK, **settings)
    together, in_turn = (
        manyhands.cross_validate(task, folds=2, stacked=choice, out=tmp_path) for choice in (True, False)
    )
    assert [fold.stacked for fold in together.folds] == [stacked] * 2
    assert together.loss == pytest.approx(in_turn.loss, rel=1e-5)
    assert together.metrics == pytest.approx(in_turn.metrics, rel=1e-5)
    if "loss" not in settings:
        assert together.metrics["loss again"] == pytest.approx(together.loss, rel=1e-5)
        assert f"loss again {together.metrics['loss again']:.4f}" in sentence(together)
    if not stacked:
        assert [fold.weights_sha256 for fold in together.folds] == [fold.weights_sha256 for fold in in_turn.folds]


def test_a_rate_that_goes_by_evaluations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ReduceLROnPlateau would never change the learning rate, since a fold is"):
        manyhands.cross_validate(replace(TASK, scheduler=ReduceLROnPlateau), folds=2, out=tmp_path)


def test_folds_begin_with_the_weights_of_a_run_in_the_same_folder(tmp_path: Path) -> None:
    first = manyhands.train(TASK, steps=3, lr=0.5, out=tmp_path)
    options = {"folds": 2, "steps": 1, "lr": 0.0, "out": tmp_path, "init": first.id}
    record = manyhands.cross_validate(TASK, **options)
    assert {fold.weights_sha256 for fold in record.folds} == {first.weights_sha256}
