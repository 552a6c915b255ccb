"""Groups of parameters: each trained parameter in one group, or one sentence that names what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR

from manyhands import Task
from manyhands.config import make_config
from manyhands.errors import UserError
from manyhands.replica.optimizer.naming import named_groups
from manyhands.run import preflight

SPEC = "synthetic:samples=20,features=5,classes=3,test=6,seed=1"
CONFIG = make_config({"task": "mine", "data": SPEC, "batch_size": 5, "epochs": 2})


def _model(*_: object) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def _frozen(*_: object) -> nn.Module:
    model = _model()
    model[0].requires_grad_(False)
    return model


def _halves(model: nn.Module) -> list[dict[str, Any]]:
    return [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.1}]


def _with(options: dict[str, Any]) -> Callable[[nn.Module], list[dict[str, Any]]]:
    return lambda model: [{"params": model.parameters(), **options}]


def _sgd(params: Any, lr: float) -> SGD:
    return SGD(params, lr=lr)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "left out": (
        {"param_groups": lambda m: [{"params": m[0].parameters()}]},
        r"param_groups of 'mine' leaves out the parameter '2.weight'; put it into a group, or freeze it",
    ),
    "in two": (
        {"param_groups": lambda m: [{"params": m.parameters()}, {"params": [m[2].bias]}]},
        "has the parameter '2.bias' in group 0 and in group 1",
    ),
    "twice in one": (
        {"param_groups": lambda m: [{"params": [*m.parameters(), m[0].bias]}]},
        "has the parameter '0.bias' twice in group 0",
    ),
    "stranger": (
        {"param_groups": lambda m: [{"params": [torch.zeros(2, 3), *m.parameters()]}]},
        r"group 0 of param_groups of 'mine' holds a tensor of shape \(2, 3\) as its parameter 0, which is no parameter",
    ),
    "empty": (
        {"param_groups": lambda m: [{"params": m.parameters()}, {"params": []}]},
        "group 1 of param_groups of 'mine' is empty",
    ),
    "no params": ({"param_groups": lambda m: [{"lr": 0.1}]}, "group 0 of .* has no 'params', only 'lr'; write"),
    "no list": ({"param_groups": lambda m: {"params": m.parameters()}}, "returned a dict, not a list of groups; write"),
    "raises": ({"param_groups": lambda m: m[7]}, "param_groups of 'mine' failed"),
    "no function": ({"param_groups": []}, "param_groups must be a function"),
    "from_epoch": ({"param_groups": _with({"from_epoch": 0.5})}, "from_epoch of group 0 .* from 0, got 0.5"),
    "misspelt option": (
        {"param_groups": _with({"wieght_decay": 0.5})},
        "there is no option of the optimiser 'sgd' 'wieght_decay'; did you mean 'weight_decay'",
    ),
    "rate of no group": (
        {"param_groups": _with({"lr": 0.5}), "lr": 0.2},
        "--lr 0.01 would change nothing, since every group of 'mine' has its own lr; leave it out",
    ),
    "function makes others": (
        {"param_groups": _halves, "optimizer": lambda p, lr: SGD([q for g in p for q in g["params"]], lr=lr)},
        "has 1 parameter groups where 2 are wanted",
    ),
    "scheduler of another": (
        {"scheduler": lambda o: StepLR(SGD([torch.zeros(1)], lr=0.1), 3)},
        "the scheduler StepLR of 'mine' is made for another optimiser; make it for the one that its function is given",
    ),
    "no scheduler": ({"scheduler": lambda o: o}, "the scheduler function of 'mine' returned an? .*, not one of torch"),
    "scheduler itself": ({"scheduler": StepLR(SGD([torch.zeros(1)], lr=0.1), 3)}, "scheduler must be a function"),
    "scheduler raises": ({"scheduler": lambda o: StepLR(o)}, "making the scheduler of 'mine' failed"),
    "scheduler ends": (
        {"scheduler": lambda o: OneCycleLR(o, 0.1, 5)},
        "the scheduler OneCycleLR of 'mine' failed at its step 6",
    ),
    "rates of fewer groups": (
        {"param_groups": _halves, "scheduler": lambda o: LambdaLR(o, [lambda i: 1.0])},
        "making the scheduler of 'mine' failed: Expected 2 lr_lambdas",
    ),
    "scheduler_every": ({"scheduler_every": "day"}, "scheduler_every must be 'step' or 'epoch', got 'day'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_any_rank_starts(case: str) -> None:
    fields, says = WRONG[case]
    with pytest.raises(UserError, match=says) as refused:
        preflight(CONFIG, Task(**{"model": _model, "data": SPEC, **fields}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "param_groups",
    [
        lambda m: [{"params": m[2].parameters()}],
        lambda m: [{"params": m.parameters()}],
        lambda m: [{"params": m[0].parameters()}, {"params": m[2].parameters()}],
        lambda m: [{"params": m.named_parameters()}],
    ],
)
def test_frozen_parameters_may_be_left_out(param_groups: Callable[[nn.Module], list[dict[str, Any]]]) -> None:
    task = Task(model=_frozen, data=SPEC, param_groups=param_groups, optimizer="adam")
    before = preflight(CONFIG, task).replica
    groups = named_groups(param_groups, "mine", before.module)
    assert [name for group in groups for name in group.names] == ["2.weight", "2.bias"]
    assert before.update.num_weights == 15
    before.grads.fill_(1.0)
    before.apply()


def test_weights_lie_group_by_group(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def back_to_front(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": model[2].parameters()}, {"params": [model[0].bias, model[0].weight]}]

    replica = preflight(CONFIG, Task(model=_model, data=SPEC, param_groups=back_to_front)).replica
    assert list(replica.spans) == ["2.weight", "2.bias", "0.bias", "0.weight"]
    assert replica.shapes() == [(3, 4), (3,), (4,), (4, 5)]
    params = [group["params"] for group in replica.update.optimizer.param_groups]
    assert [[p.numel() for p in of_group] for of_group in params] == [[15], [24]], "a flat tensor for each"


def test_every_group_may_have_its_own_rate() -> None:
    task = Task(model=_model, data=SPEC, param_groups=_with({"lr": 0.5}), optimizer=_sgd)
    replica = preflight(CONFIG, task).replica
    assert replica.update.optimizer.param_groups[0]["lr"] == 0.5
