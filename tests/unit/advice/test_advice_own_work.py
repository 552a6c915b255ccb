"""Advice needs an accuracy to reach, and follows the weights themselves."""

from dataclasses import replace

import pytest
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from manyhands import Task
from manyhands.advice.train import Recipe, Trainer
from manyhands.errors import UserError


def _squares(output: Tensor, target: Tensor) -> Tensor:
    return ((output.squeeze(1) - target.to(output.dtype)) ** 2).mean()


TASK = Task(
    model=lambda data: nn.Linear(12, 1),
    data="synthetic:samples=97,features=12,classes=3,test=23,seed=5",
    loss=_squares,
    name="own",
)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (TASK, "'own' has no accuracy to reach, since its targets are no classes"),
        (replace(TASK, ema=0.9), "'own' averages them; set ema to 0"),
        (replace(TASK, scheduler=ReduceLROnPlateau), "ReduceLROnPlateau would never change the learning rate"),
    ],
)
def test_a_task_that_cannot_be_advised_is_refused(task: Task, says: str) -> None:
    trainer = Trainer("own", task, 0.9, lambda *progress: None)
    with pytest.raises(UserError, match=says):
        trainer.train(Recipe("allreduce", 1, 10, 0.01, 0), 0, 20)
