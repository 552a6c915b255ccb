"""The first losses of every built-in task are what they were; see `regenerate.py`."""

import pytest
import torch
from runs import RUNS, STEPS, losses_of, read

from manyhands import tasks
from manyhands.data.order import batches, num_batches
from manyhands.run import resolve
from manyhands.tasks.setup import criterion_of, load_data


@pytest.mark.parametrize("task", RUNS)
def test_the_first_losses_are_what_they_were(task: str) -> None:
    expected = read(task)
    assert len(expected) == STEPS
    assert losses_of(task) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("task", [task for task in RUNS if task != "cnn"])
def test_they_are_those_of_a_plain_training_loop(task: str) -> None:
    """The same network, order and optimiser with nothing of ours in between; dropout draws in its own way."""
    config = resolve(task, RUNS[task])
    description = tasks.load(task)
    data = load_data(description, config)
    torch.manual_seed(1)
    module = description.model(data)
    optimizer = description.make_optimizer(list(module.parameters()), config)
    size = len(data.train) if config.batch_size == "full" else min(config.batch_size, len(data.train))
    losses: list[float] = []
    while len(losses) < STEPS:
        for rows in batches(len(data.train), size, 1, len(losses) // num_batches(len(data.train), size)):
            x, y = data.train.batch(rows, torch.float32)
            loss = criterion_of(description, module).loss(module(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:STEPS] == pytest.approx(read(task), rel=1e-4)


@pytest.mark.parametrize("task", ["softmax", "cnn"])
def test_workers_have_the_same_losses(task: str) -> None:
    assert losses_of(task, engine="threads", workers=3) == pytest.approx(read(task), rel=1e-4)


def test_every_built_in_image_task_is_kept() -> None:
    assert set(tasks.names()) - {"recommender"} <= set(RUNS)
