"""What a step has to do, whatever the machine."""

import pytest

from manyhands import tasks
from manyhands.calibration.counts import Counts, count
from manyhands.data import Dataset
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


def test_every_operation_counts_but_those_of_a_backward_pass() -> None:
    """Three layers are more than one; and of a network that torch differentiates by itself, the forward pass."""
    one_layer, three_layers, autograd = (counted(name) for name in ("softmax", "mlp", "cnn"))
    assert 5 < one_layer.pass_operations < three_layers.pass_operations < autograd.pass_operations < 100
    assert (one_layer.update_operations, three_layers.update_operations) == (1, 1)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_counting_again_gives_the_same(name: str) -> None:
    """What the first step of a replica has to make besides is no part of it, nor into which pieces a batch is cut."""
    replica, data = made(name)
    config = resolve(name, {"engine": "serial"}, tasks.load(name))
    first = count(replica, config, data.train)
    assert first == count(replica, config, data.train)
    assert first == count(made(name)[0], config.model_copy(update={"micro_batch": 1}), data.train)
    assert first.update_operations <= 3
