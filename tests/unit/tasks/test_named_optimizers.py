"""Optimisers by name, and the settings of a run that change them."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

import manyhands
from manyhands import Task
from manyhands.config import make_config
from manyhands.errors import UserError
from manyhands.run import preflight
from manyhands.tasks.optimizers import NAMES, REFUSED

SPEC = "synthetic:samples=20,features=5,classes=3,test=6,seed=1"


def _model(*_: object) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False))


def _own(params: list[torch.Tensor], lr: float) -> SGD:
    return SGD(params, lr=lr)


def _group(task: Task, **options: object) -> dict[str, object]:
    replica = preflight(make_config({"task": "mine", "data": SPEC, "batch_size": 5, **options}), task).replica
    return replica.update.optimizer.param_groups[0]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_trains(name: str) -> None:
    options = {"optimizer": name, "task": "mine", "data": SPEC, "batch_size": 5, "lr": 1e-3}
    replica = preflight(make_config(options), Task(model=_model, data=SPEC)).replica
    before = replica.params.clone()
    replica.apply()
    assert not torch.equal(replica.params, before)


@pytest.mark.parametrize("name", REFUSED)
def test_those_that_need_more_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"the optimiser '{name}' (needs a closure|takes sparse)"):
        _group(Task(model=_model, data=SPEC), optimizer=name)
    with pytest.raises(UserError, match=f"the optimiser '{name}' (needs a closure|takes sparse)"):
        Task(model=_model, optimizer=name)


def test_what_is_no_matrix_is_named() -> None:
    task = Task(model=lambda data: nn.Linear(5, 3), data=SPEC)
    with pytest.raises(UserError, match=r"'muon' takes matrices alone, and 'bias' of 'mine' has shape \(3,\); use"):
        _group(task, optimizer="muon")


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UserError, match="there is no optimizer 'adamx'; did you mean 'adam'"):
        _group(Task(model=_model, data=SPEC), optimizer="adamx")


def test_settings_override_the_tasks() -> None:
    task = Task(model=_model, data=SPEC, optimizer="momentum")
    assert _group(task)["momentum"] == 0.9
    group = _group(task, momentum=0.5, weight_decay=0.1)
    assert (group["momentum"], group["weight_decay"]) == (0.5, 0.1)
    assert _group(task, optimizer="adamw", weight_decay=0.3)["weight_decay"] == 0.3
    assert _group(Task(model=_model, data=SPEC, optimizer=_own), optimizer="rmsprop", momentum=0.2)["momentum"] == 0.2


def test_settings_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"the optimiser 'adam' has no momentum; leave --momentum 0.9 out"):
        _group(Task(model=_model, data=SPEC, optimizer="adam"), momentum=0.9)
    with pytest.raises(UserError, match=r"the optimiser 'rprop' has no weight decay; leave --weight-decay 0.1 out"):
        _group(Task(model=_model, data=SPEC), optimizer="rprop", weight_decay=0.1)
    with pytest.raises(UserError, match=r"--weight-decay 0.1 cannot change the optimiser of 'mine', .* write it there"):
        _group(Task(model=_model, data=SPEC, optimizer=_own), weight_decay=0.1)
    grouped = Task(model=_model, data=SPEC, param_groups=lambda m: [{"params": m.parameters(), "weight_decay": 0.2}])
    with pytest.raises(UserError, match="since every group of 'mine' has its own weight_decay; leave it out"):
        _group(grouped, weight_decay=0.1)


@pytest.mark.parametrize("change", [{"optimizer": "adam"}, {"momentum": 0.5}, {"clip": 2.0}, {"weight_decay": 0.5}])
def test_a_resumed_run_cannot_change_them(train, tiny, change: dict[str, object]) -> None:  # type: ignore[no-untyped-def]
    train(tiny("mlp"), steps=2, checkpoint_every=2, clip=1.0)
    (name,) = change
    with pytest.raises(UserError, match=rf"has {name.replace('_', '-')} .*; a resumed run cannot change it to"):
        train(tiny("mlp"), resume=True, steps=4, **change)


def test_another_order_of_groups_cannot_go_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The weights lie group by group: they would silently become each other's."""

    def task(*order: int) -> Task:
        groups = lambda m: [{"params": [list(m.parameters())[i]]} for i in order]  # noqa: E731
        return Task(model=_model, data=SPEC, batch_size=5, param_groups=groups, name="mine")

    manyhands.train(task(0, 1), out=tmp_path, steps=2, checkpoint_every=2)
    with pytest.raises(UserError, match="has the weights in another order: the task's param_groups were others"):
        manyhands.train(task(1, 0), out=tmp_path, resume=True, steps=4)
