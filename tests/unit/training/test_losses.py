"""Losses that are sums or weighted means: n workers, micro-batches and --exact give what one worker gives.

Batches of 10 and 4 rows: slices are uneven, and some are empty or without any weight.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import near, trained
from torch import Tensor, nn

from manyhands import Dataset, Task
from manyhands.data import Split, load
from manyhands.errors import UserError
from manyhands.request import resolve
from manyhands.run import preflight

SOURCE = "synthetic:samples=26,features=12,classes=3,test=5,seed=5"
WEIGHTS = torch.tensor([1.0, 0.0, 0.3], dtype=torch.float64)
PADDING = 1
"""The class whose rows do not count."""

Loss = Callable[..., Tensor]


def _sum(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="sum")


def _classes(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, weight=WEIGHTS.to(out.dtype))


def _padded(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, ignore_index=PADDING)


def _with_network(out: Tensor, y: Tensor, network: nn.Module) -> Tensor:
    return F.cross_entropy(out, y) + 0.01 * sum(p.square().sum() for p in network.parameters())


LOSSES: dict[str, dict[str, Any]] = {
    "sum": {"loss": _sum, "reduction": "sum"},
    "class weights": {"loss": _classes, "loss_weight": lambda y: WEIGHTS[y].sum()},
    "padding": {"loss": _padded, "loss_weight": lambda y: (y != PADDING).sum()},
    "of the network": {"loss": _with_network},
}


def _data() -> Dataset:
    """Return data in which many slices, and a whole batch, have rows of padding alone."""
    data = load(SOURCE)
    y = torch.full_like(data.train.y, PADDING)
    y[::5] = data.train.y[::5]
    y[1], y[7] = 0, 2
    return Dataset(data.name, Split(data.train.x, y), data.test, data.classes)


def _task(loss: str, layer: Callable[[], nn.Module] = nn.Identity) -> Task:
    def model(data: Dataset) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 8), layer(), nn.Tanh(), nn.Linear(8, 3))

    return Task(model=model, data=SOURCE, lr=0.01, **LOSSES[loss])


@pytest.mark.parametrize("batch", [10, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_several_workers_and_pieces_give_the_answer_of_one(loss: str, batch: int, ranks: Any, tmp_path: Path) -> None:
    data = _data()
    expected, alone = trained(ranks, tmp_path, _task(loss), data, 1, batch_size=batch)
    assert all(t.isfinite().all() for t in expected.values())
    for workers, strategy, pieces in (
        (2, "allreduce", 0), (5, "sharded", 0), (3, "parameter-server", 2), (1, "allreduce", 3), (2, "compressed", 0),
    ):  # fmt: skip
        actual, record = trained(
            ranks, tmp_path, _task(loss), data, workers, strategy, batch_size=batch, micro_batch=pieces
        )
        most = 1e-12 if strategy != "compressed" else 1e-3
        assert near(actual, expected, most), (workers, strategy)
        if strategy != "compressed":
            assert record["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_they_are_those_of_a_plain_loop(loss: str, ranks: Any, tmp_path: Path) -> None:
    data, task = _data(), _task(loss)
    torch.manual_seed(0)
    actual, record = trained(ranks, tmp_path, task, data, 3, batch_size="full", steps=3)
    start, _ = trained(ranks, tmp_path, task, data, 1, batch_size="full", steps=1, lr=0.0)
    module = task.make_model(data).double()
    module.load_state_dict(start)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.lr)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        value = task.loss_with(module)(module(data.train.x.double()), data.train.y)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(value.item() / (len(data.train) if loss == "sum" else 1))
    assert near(actual, dict(module.state_dict()))
    assert record["train_loss"] == pytest.approx(losses, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_exact_gives_the_same_bits(loss: str, ranks: Any, tmp_path: Path) -> None:
    same = {"batch_size": 10, "exact": True, "dtype": "float32", "steps": 5}
    hashes = {
        trained(ranks, tmp_path, _task(loss), _data(), workers, **same)[1]["weights_sha256"] for workers in (1, 2, 3, 5)
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_do_not_count_still_move_batchnorm(loss: str, ranks: Any, tmp_path: Path) -> None:
    """Padding has no loss, but its rows are normalised with the others, and slopes reach them through the moments."""
    task = _task(loss, lambda: nn.BatchNorm1d(8))
    expected, _ = trained(ranks, tmp_path, task, _data(), 1, batch_size=4)
    for workers, strategy in ((2, "allreduce"), (5, "overlap:bucket=7")):
        assert near(trained(ranks, tmp_path, task, _data(), workers, strategy, batch_size=4)[0], expected)


def test_a_batch_without_any_weight_changes_nothing(ranks: Any, tmp_path: Path) -> None:
    data = _data()
    padding = Dataset(data.name, Split(data.train.x, torch.full_like(data.train.y, PADDING)), data.test, data.classes)
    start, _ = trained(ranks, tmp_path, _task("padding"), padding, 1, lr=0.0, steps=1)
    for workers in (1, 3):
        after, record = trained(ranks, tmp_path, _task("padding"), padding, workers, steps=3)
        assert near(after, start, 0.0)
        assert record["train_loss"] == [0.0] * 3


@pytest.mark.parametrize("strategy", ["local-sgd:period=2", "gossip", "average-epoch"])
@pytest.mark.parametrize("loss", LOSSES)
def test_workers_who_step_alone_use_their_own_weights(loss: str, strategy: str, ranks: Any, tmp_path: Path) -> None:
    after, record = trained(ranks, tmp_path, _task(loss), _data(), 3, strategy, batch_size=4)
    assert all(t.isfinite().all() for t in after.values())
    assert len({rank["rank"] for rank in record["ranks"]}) == 3


def test_a_loss_that_is_not_what_the_task_says_is_refused_before_the_start() -> None:
    for said, loss, hint in (("mean", _sum, 'say reduction="sum"'), ("sum", F.cross_entropy, "leave that out")):
        task = replace(_task("sum"), loss=loss, reduction=said)
        with pytest.raises(UserError, match=hint):
            preflight(resolve("own", {"engine": "threads", "workers": 2}, task), task)


def test_a_weighted_loss_without_its_weight_is_warned_of() -> None:
    task = replace(_task("class weights"), loss_weight=None)
    (warning,) = preflight(resolve("own", {"engine": "threads", "workers": 2}, task), task).warnings
    assert "loss_weight" in warning
    said = _task("class weights")
    assert preflight(resolve("own", {"engine": "threads", "workers": 2}, said), said).warnings == []


def test_a_loss_of_three_arguments_gets_the_network(train: Any, tmp_path: Path) -> None:
    task = _task("of the network")
    record = train(task, engine="threads", workers=2, steps=3, batch_size=10)
    assert record.warnings == []
    lines = (tmp_path / record.id / "steps.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["loss"] > 0
