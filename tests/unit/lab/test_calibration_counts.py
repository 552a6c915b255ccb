"""What a step has to do, whatever the machine."""

from collections.abc import Callable

import pytest
import torch

from manyhands import tasks
from manyhands.data import Dataset
from manyhands.lab.calibration_counts import Counts, count
from manyhands.replica import Replica
from manyhands.request import resolve
from manyhands.tasks.setup import device_of, load_data, make_replica


def made(name: str) -> tuple[Replica, Dataset]:
    task = tasks.load(name)
    config = resolve(name, {"engine": "serial", "blas_threads": 1}, task)
    data = load_data(task, config)
    return make_replica(task, config, data, device_of(config, 0)), data


def counted(name: str) -> Counts:
    replica, data = made(name)
    return count(replica, resolve(name, {"engine": "serial"}, tasks.load(name)), data.train)


def test_floating_point_operations_are_those_of_the_products() -> None:
    """Softmax regression: the outputs, and the gradient of the weights; the inputs need none. Two for each product."""
    assert counted("softmax").flops_per_row == 2 * 2 * 784 * 10


def test_every_operation_that_python_starts_counts() -> None:
    """A layer more is some more of them; and a backward pass that torch makes by itself counts none."""
    one_layer, three_layers, autograd = (counted(name) for name in ("softmax", "mlp", "cnn"))
    assert 5 < one_layer.pass_operations < three_layers.pass_operations < autograd.pass_operations < 100
    assert all(1 <= each.update_operations <= 10 for each in (one_layer, three_layers, autograd))


@pytest.mark.parametrize("of", ["mlp", "batchnorm"])
def test_counting_leaves_the_weights_as_they_were(tiny: Callable[[str], str], of: str) -> None:
    name = tiny(of)
    replica, data = made(name)
    before = replica.params.clone()
    found = count(replica, resolve(name, {"engine": "serial"}, tasks.load(name)), data.train)
    assert torch.equal(replica.params, before)
    assert found.flops_per_row > 0
