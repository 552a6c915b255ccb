"""Virtual nodes train tasks whose targets are no classes; an average of the weights they do not follow."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor, nn

from manyhands import Task
from manyhands.comm.sim import Instant
from manyhands.errors import UserError
from manyhands.virtual.train import train_virtually


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


@pytest.mark.parametrize("sync", ["allreduce", "local-sgd:period=2", "async-server"])
def test_there_is_no_accuracy(tmp_path: Path, sync: str) -> None:
    record = train_virtually(TASK, 2, sync=sync, machine=Instant(), out=tmp_path)
    assert record.test_accuracy is None
    assert [point.accuracy for point in record.points] == [None] * len(record.points)
    assert record.time_to(0.5) is None
    assert record.points[-1].test_loss == record.test_loss < 5


def test_an_average_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"virtual nodes keep no average of the weights, but the task has ema 0.9"):
        train_virtually(replace(TASK, ema=0.9), 2, machine=Instant(), out=tmp_path)
