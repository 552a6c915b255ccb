"""Virtual nodes train tasks whose targets are no classes; an average of the weights they do not follow."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import manyhands
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


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"ema": 0.9}, r"virtual nodes keep no average of the weights, but the task has ema 0.9"),
        ({"scheduler": ReduceLROnPlateau}, "would never change the learning rate, since virtual nodes are tested"),
    ],
)
def test_what_virtual_nodes_do_not_follow_is_refused(tmp_path: Path, setting: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        train_virtually(replace(TASK, **setting), 2, machine=Instant(), out=tmp_path)


@pytest.mark.parametrize("sync", ["allreduce", "local-sgd:period=2"])
def test_steps_that_overflow_are_left_out_as_in_a_run(tmp_path: Path, sync: str) -> None:
    """The slopes overflow in fp16 until the loss is scaled down."""
    task = replace(TASK, loss=lambda output, target: 1e3 * _squares(output, target), lr=1e-6, precision="fp16")
    record = train_virtually(task, 2, sync=sync, machine=Instant(), out=tmp_path)
    real = manyhands.train(task, engine="threads", workers=2, sync=sync, out=tmp_path / "real")
    assert record.test_loss == pytest.approx(real.test_loss, rel=1e-2)


def test_a_loss_that_looks_at_the_network_sees_the_trained_one(tmp_path: Path) -> None:
    def loss(output: Tensor, target: Tensor, network: nn.Module) -> Tensor:
        return _squares(output, target) + sum(p.square().sum() for p in network.parameters())

    task = replace(TASK, loss=loss)
    record = train_virtually(task, 2, machine=Instant(), out=tmp_path)
    assert record.test_loss == pytest.approx(manyhands.train(task, out=tmp_path / "real").test_loss, rel=1e-5)


def test_the_loss_of_a_sum_is_told_by_row(tmp_path: Path) -> None:
    task = replace(TASK, loss=lambda output, target: 10 * _squares(output, target), lr=0.001, reduction="sum")
    record = train_virtually(task, 1, machine=Instant(), out=tmp_path)
    real = manyhands.train(task, out=tmp_path / "real")
    steps = (tmp_path / "real" / real.id / "steps.jsonl").read_text().splitlines()
    assert record.step_loss[0] == pytest.approx(json.loads(steps[0])["loss"])
