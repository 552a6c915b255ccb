"""A cross-validation of a task whose outputs are no classes has losses alone."""

from pathlib import Path

import pytest
from torch import Tensor, nn

import manyhands
from manyhands import Task
from manyhands.cli.crossval import sentence
from manyhands.errors import UserError


def _squares(output: Tensor, target: Tensor) -> Tensor:
    return ((output.squeeze(1) - target.to(output.dtype)) ** 2).mean()


TASK = Task(
    model=lambda data: nn.Linear(12, 1),
    data="synthetic:samples=97,features=12,classes=3,test=23,seed=5",
    loss=_squares,
    lr=0.01,
    batch_size=10,
    name="own",
)


@pytest.mark.parametrize("options", [{}, {"nodes": 2, "split_data": True}, {"ema": 0.5}])
def test_it_has_no_accuracy(tmp_path: Path, options: dict[str, object]) -> None:
    record = manyhands.cross_validate(TASK, folds=3, out=tmp_path, **options)
    assert record.accuracy is record.interval is None
    assert [fold.accuracy for fold in record.folds] == [None] * len(record.folds)
    assert sentence(record).startswith(f"test loss {record.loss:.4f} (mean of 3 folds")
    if record.hold_out:
        assert record.hold_out.accuracy is None
        assert "hold-out loss" in sentence(record)


@pytest.mark.parametrize("option", [{"patience": 2}, {"keep_best": True}, {"eval_steps": 3}])
def test_a_fold_is_tested_once(tmp_path: Path, option: dict[str, object]) -> None:
    name = next(iter(option)).replace("_", "-")
    with pytest.raises(UserError, match=f"a fold is tested once, after its last step; leave --{name} out"):
        manyhands.cross_validate(TASK, folds=3, out=tmp_path, **option)
