"""The trial step says which part of a task failed, and takes what is meant well: an instance, a numpy array."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyhands
from manyhands import Dataset, Split, Task
from manyhands.errors import UserError
from manyhands.run import preflight
from manyhands.tasks.seeding import seeded
from manyhands.tasks.setup import load_data, make_replica

pytestmark = pytest.mark.timeout(120)

CLASSES = 3
SPEC = f"synthetic:samples=40,features=5,classes={CLASSES},test=9"


def linear(data: Dataset) -> nn.Module:
    return nn.Linear(data.shape[0], data.classes)


class Returning(nn.Module):
    """Gives what a function makes of its outputs."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(5, CLASSES), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.layer(x))


class Bare(nn.Module):
    """Takes no data when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class Stuck(torch.autograd.Function):
    """Has no backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()


def returning(change: Callable[[Tensor], Any]) -> nn.Module:
    return Returning(change)


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y)


class OfMatrices(torch.optim.SGD):
    """Takes matrices alone, as Muon does."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if any(p.dim() != 2 for p in param_group["params"]):
            raise ValueError("only matrices")
        super().add_param_group(param_group)


def scheduled(params: list[Tensor], lr: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(params, lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


def fail(*_: object) -> Any:
    raise RuntimeError("I will not")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "model raises": ({"model": fail}, "making the model for samples .* failed: I will not"),
    "model is a class": ({"model": Bare}, r"and 3 classes failed \(Bare is called with the data; .* model=Bare\(\)"),
    "model is None": ({"model": lambda data: None}, "model must be an nn.Module, .* but it returned None"),
    "fractions": (
        {"data": lambda: (np.zeros((4, 5)), np.ones(4) / 2)},
        "the loss 'cross-entropy' of '.*' needs classes, but the targets of .* are fractions",
    ),
    "a column of classes": (
        {"data": lambda: (np.zeros((4, 5)), np.array([[0], [1], [0], [1]]))},
        r"have the shape \(1,\) a row, but the loss .* takes one class a row",
    ),
    "no weights": ({"model": nn.Flatten()}, "has no trainable parameters"),
    "forward": ({"model": nn.Linear(4, 3)}, r"does not take samples of shape \(5,\): mat1 and mat2"),
    "tuple": ({"model": returning(lambda out: (out, out))}, "returned a tuple, not a tensor"),
    "dict": ({"model": returning(lambda out: {"logits": out})}, "returned a dict, not a tensor"),
    "None": ({"model": returning(lambda out: None)}, "returned None, not a tensor"),
    "one dimension": ({"model": returning(lambda out: out[:, 0])}, r"a tensor of shape \(2,\) for 2 samples"),
    "too few outputs": ({"model": nn.Linear(5, 2)}, "has 2 outputs, but synthetic has 3 classes"),
    "loss raises": ({"loss": fail}, r"the loss of outputs of shape \(2, 3\) and labels of shape \(2,\) failed: I will"),
    "loss is a class": ({"loss": nn.CrossEntropyLoss}, "the loss of .*"),
    "loss is a number": ({"loss": lambda out, y: 0.5}, "the loss of '.*' returned a float, not a tensor"),
    "loss per row": (
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        r"returned a tensor of shape \(2,\); it must be one number, the mean",
    ),
    "no gradient": ({"loss": lambda out, y: cross_entropy(out, y).detach()}, "has no gradient"),
    "backward": ({"model": returning(Stuck.apply)}, "the backward pass failed"),
    "optimiser raises": ({"optimizer": fail}, "making the optimiser failed: I will not"),
    "optimiser is None": ({"optimizer": lambda params, lr: None}, "returned None, not a torch.optim.Optimizer"),
    "LBFGS": ({"optimizer": torch.optim.LBFGS}, "the optimiser LBFGS of '.*' needs a closure"),
    "groups": (
        {"optimizer": lambda params, lr: torch.optim.SGD([{"params": params}, {"params": [torch.zeros(2)]}], lr=lr)},
        "has 2 parameter groups",
    ),
    "model takes no data": (
        {"model": lambda: nn.Linear(5, 3)},
        r"the model function of '.*' takes \(\), but it is called with \(data\)",
    ),
    "optimiser takes no rate": (
        {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1)},
        r"the optimiser function of '.*' takes \(params\), but it is called with \(params, lr\)",
    ),
    "optimiser ignores the rate": (
        {"optimizer": lambda params, lr: torch.optim.SGD(params, lr=0.5)},
        r"SGD of '.*' has the learning rate 0.5 whichever .* say Task\(lr=0.5\)",
    ),
    "optimiser of matrices alone": (
        {"optimizer": lambda params, lr: OfMatrices(params, lr=lr)},
        "making the optimiser failed: only matrices",
    ),
    "scheduler": ({"optimizer": scheduled}, "changes its learning rate by itself or by a scheduler"),
    "loss of one argument": (
        {"loss": lambda out: out.mean()},
        r"the loss function of '.*' takes \(out\), but it is called with \(output, target\)",
    ),
    "loss is a class, not an instance": ({"loss": nn.MSELoss}, r"give an instance, loss=MSELoss\(\)"),
    "every output with every label": (
        {"model": nn.Linear(5, 1), "loss": nn.MSELoss()},
        r"the loss of outputs of shape \(2, 1\) and labels of shape \(2,\) failed: Using a target size",
    ),
    "data is a loader": (
        {"data": lambda: torch.utils.data.DataLoader([1])},
        r"the data of mine must be a manyhands.Dataset, a pair \(train, test\).* got a DataLoader; split it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_failed_is_said(case: str) -> None:
    wrong, says = WRONG[case]
    task = Task(**{"model": linear, "data": SPEC, "name": "mine", **wrong})
    with pytest.raises(UserError, match=says) as failed:
        manyhands.train(task)
    assert "\n" not in str(failed.value)
    assert case == "forward" or "does not take samples" not in str(failed.value)


def test_labels_that_are_spread_over_two_outputs_do_not_pass_for_two_rows() -> None:
    task = Task(
        model=nn.Linear(5, 2),
        data=SPEC.replace(f"classes={CLASSES}", "classes=2"),
        loss=lambda out, y: ((out - y) ** 2).mean(),
        name="mine",
    )
    with pytest.raises(UserError, match=r"the loss of outputs of shape \(3, 2\) and labels of shape \(3,\) failed"):
        manyhands.train(task)


@pytest.mark.parametrize("given", [lambda data: linear(data), linear, nn.Linear(5, 3), 3, None])
def test_a_task_that_is_none_is_refused(given: Any) -> None:
    for verb in (manyhands.train, manyhands.cross_validate):
        with pytest.raises(UserError, match=r"or a manyhands.Task, got (a function|a Linear|an int|None)"):
            verb(given)


def test_each_replica_is_a_copy_of_the_instance() -> None:
    network = nn.Linear(5, CLASSES)
    before = network.weight.detach().clone()
    task = Task(model=network, data=SPEC, batch_size=8, name="mine")
    config = manyhands.run.resolve("mine", {}, task)
    data, device = load_data(task, config), torch.device("cpu")
    first, second = (make_replica(task, config.model_copy(update={"seed": seed}), data, device) for seed in (0, 1))
    assert torch.equal(first.params, second.params), "whatever the seed"
    first.params.zero_()
    assert torch.equal(network.weight, before), "the instance itself is left alone"
    assert not torch.equal(first.params, second.params)


def test_an_instance_trains_as_the_function_that_returns_it_does(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with seeded(0):
        network = nn.Linear(5, CLASSES)
    options: dict[str, Any] = {"epochs": 1, "exact": True, "out": tmp_path}
    made = Task(model=linear, data=SPEC, batch_size=8, name="mine")
    expected = manyhands.train(made, **options).weights_sha256
    for engine in ({}, {"engine": "threads", "workers": 3}):
        assert manyhands.train(replace(made, model=network), **options, **engine).weights_sha256 == expected


def test_numpy_arrays_are_samples() -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8) % 2
    x.flags.writeable = False
    for labels in (y, y.astype(np.int32), y.astype(np.uint8), y.astype(bool), y[::-1], torch.tensor(y)):
        split = Split(x, labels)  # type: ignore[arg-type]
        assert split.y.dtype == torch.int64
        assert split.y.tolist() == [int(label) for label in labels]
        assert split.batch(slice(1, 3), torch.float32)[0].tolist() == x[1:3].tolist()
    task = Task(model=linear, data=Dataset("mine", Split(x, y), Split(x, y), 2), name="mine")  # type: ignore[arg-type]
    assert preflight(manyhands.run.resolve("mine", {}, task), task).data.shape == (3,)


X, Y = torch.ones(6, 4), torch.arange(6) % 2
BAD_DATA: dict[str, tuple[Callable[[], Dataset], str]] = {
    "no test": (lambda: Dataset("mine", Split(X, Y), None, 2), "the test split of mine must be .* got None"),  # type: ignore[arg-type]
    "pair": (lambda: Dataset("mine", (X, Y), Split(X, Y), 2), "the training split of mine must be .* got a tuple"),  # type: ignore[arg-type]
    "width": (lambda: Dataset("mine", Split(X, Y), Split(X[:, :3], Y), 2), r"has the shape \(4,\), but .* has \(3,\)"),
    "type": (lambda: Dataset("mine", Split(X, Y), Split(X.byte(), Y), 2), "are fractions, but .* whole numbers"),
    "scale": (lambda: Dataset("mine", Split(X, Y), Split(X, Y, scale=0.5), 2), "multiplied by 0.5"),
    "classes": (lambda: Dataset("mine", Split(X, Y), Split(X, Y), 2.5), "classes of mine must be a whole number"),  # type: ignore[arg-type]
    "two dimensions": (lambda: Dataset("mine", Split(X, Y.view(6, 1)), Split(X, Y), 2), r"their shape is \(6, 1\)"),
    "one-hot": (lambda: Dataset("mine", Split(X, torch.eye(6)), Split(X, Y), 2), r"their shape is \(6, 6\)"),
    "float labels": (lambda: Dataset("mine", Split(X, Y.float()), Split(X, Y), 2), "whole numbers.* got float32"),
    "lists": (lambda: Dataset("mine", Split([[1.0]], [0]), Split(X, Y), 2), "a numpy array, got a list"),  # type: ignore[arg-type]
    "texts": (lambda: Dataset("mine", Split(np.array(["a"]), Y), Split(X, Y), 2), "of type <U1"),  # type: ignore[arg-type]
    "rows": (lambda: Dataset("mine", Split(X, Y[:5]), Split(X, Y), 2), "6 inputs but 5 labels"),
    "empty": (lambda: Dataset("mine", Split(X[:0], Y[:0]), Split(X, Y), 2), "the training split of mine is empty"),
    "negative": (
        lambda: Dataset("mine", Split(X, Y), Split(X, Y - 1), 2),
        "row 0 of the test labels .* is -1, out",
    ),
    "too large": (
        lambda: Dataset("mine", Split(X, Y + 1), Split(X, Y), 2),
        "row 1 of the training labels .* is 2,",
    ),
    "not seen": (lambda: Dataset("mine", Split(X, Y), Split(X, Y + 5), 2), "row 0 of the test labels .* is 5, outside"),
    "nothing": (lambda: Dataset("mine", Split(X[:, :0], Y), Split(X[:, :0], Y), 2), r"samples of shape \(0,\)"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_is_explained(case: str) -> None:
    make, says = BAD_DATA[case]
    with pytest.raises(UserError, match=says) as failed:
        manyhands.train(Task(model=nn.Linear(4, 2), data=make, name="mine"))
    assert "\n" not in str(failed.value)


def test_a_users_code_draws_from_the_seed_and_leaves_the_generators_alone() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    draw()
    with seeded(3):
        first = draw()
    with seeded(2**40 + 3):
        draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with seeded(3):
        assert draw() == first
    with pytest.raises(RuntimeError, match="stop"), seeded(3):
        raise RuntimeError("stop")
    assert draw() == expected
