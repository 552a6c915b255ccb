"""Built-in tasks, and those of the user's own files."""

import math
import threading
from pathlib import Path

import pytest
import torch

from manyhands import Task, tasks
from manyhands.data import load as load_data
from manyhands.errors import TaskFileFailed, UserError
from manyhands.tasks import names
from manyhands.tasks.load import load, spec_of

PARAMETERS = {
    "softmax": 784 * 10 + 10,
    "mlp": 235_146,
    "mlp-sigmoid": 784 * 256 + 256 + 256 * 10 + 10,
    "cnn": 690_590,
    "dnn": 784 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10,
}


def test_every_task_of_the_design_that_is_there_is_counted_here() -> None:
    assert set(PARAMETERS) <= set(names())


@pytest.mark.parametrize("name", PARAMETERS)
def test_built_in_networks_have_the_papers_parameters(name: str) -> None:
    data = load_data("synthetic:samples=2,test=1,shape=1x28x28")
    module = load(name).model(data)
    assert sum(p.numel() for p in module.parameters()) == PARAMETERS[name]
    assert module(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_task_names_itself_for_other_processes(name: str) -> None:
    task = load(name)
    assert task.name == name
    assert spec_of(task) == name
    assert load(spec_of(task)) is task


def test_mlp_begins_with_he_and_xavier() -> None:
    torch.manual_seed(0)
    module = load("mlp").model(load_data("synthetic:samples=2,test=1,shape=1x28x28"))
    first, second, last = (m for m in module if isinstance(m, torch.nn.Linear))  # type: ignore[attr-defined]
    for layer, deviation in (
        (first, math.sqrt(2 / 784)),
        (second, math.sqrt(2 / 256)),
        (last, math.sqrt(2 / (128 + 10))),
    ):
        assert layer.weight.std().item() == pytest.approx(deviation, rel=0.1)
        assert layer.bias.eq(0).all()


def test_an_unknown_task_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="there is no task 'mpl'; did you mean 'mlp'"):
        load("mpl")
    for helper in ("base", "load", "setup", ""):
        with pytest.raises(UserError, match="there is no task"):
            load(helper)


OWN = """
from torch import nn
from manyhands import Task
import neighbour

task = Task(model=lambda data: nn.Linear(data.shape[0], data.classes), data="synthetic:samples=20,features=3,test=5")
other = Task(model=lambda data: nn.Linear(3, 10), data="synthetic:samples=20,features=3,test=5", lr=neighbour.LR)
number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("LR = 0.125\n")
    file = tmp_path / "own_task.py"
    file.write_text(OWN)
    return file


def test_a_users_file_is_loaded(own: Path) -> None:
    assert isinstance(load(str(own)), Task)
    assert load(f"{own}:other").lr == 0.125


def test_a_users_task_can_be_trained_as_an_object(own: Path, train) -> None:  # type: ignore[no-untyped-def]
    task = load(f"{own}:other")
    record = train(task, steps=2, batch_size=5)
    assert record.task == f"{own}:other"
    assert record.config.lr == 0.125


def test_a_task_without_a_file_trains_here_but_not_in_other_processes(train) -> None:  # type: ignore[no-untyped-def]
    task = Task(model=lambda data: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)), name="mine")
    assert spec_of(task) is None
    small = {"data": "mnist:train=50,test=20", "epochs": 1}
    assert train(task, engine="threads", workers=2, **small).task == "mine"
    with pytest.raises(UserError, match="must import the task"):
        train(task, engine="mpi", workers=2, **small)


def test_a_file_that_trains_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "unguarded.py"
    file.write_text("import manyhands\ntask = manyhands.Task(model=print)\nmanyhands.train(task)\n")
    with pytest.raises(UserError, match="if __name__ == '__main__'"):
        load(f"{file}:task")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere.py:task", "there is no task file"),
        ("{own}:tsk", "there is no variable of .* named 'tsk'; did you mean 'task'"),
        ("{own}:number", "'number' in .* is an int, not a manyhands.Task"),
    ],
)
def test_a_bad_file_is_explained(own: Path, spec: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(spec.format(own=own))


@pytest.mark.parametrize("text", ["1 / 0", "import no_such_module", "def", "raise ValueError('mine')"])
def test_a_file_that_does_not_import_is_explained_with_its_cause(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(TaskFileFailed, match="does not import") as caught:
        load(str(file))
    assert caught.value.__cause__ is not None


def test_threads_may_load_one_file_at_once(own: Path) -> None:
    found: list[float] = []
    together = threading.Barrier(6)

    def work() -> None:
        together.wait()
        found.append(load(f"{own}:other").lr)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [0.125] * 6


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"loss": "crossentropy"}, "there is no loss 'crossentropy'; did you mean 'cross-entropy'"),
        ({"optimizer": "adm"}, "there is no optimizer 'adm'; did you mean 'adam'"),
        ({"model": 3}, "model must be an nn.Module, or a function .* got an int"),
        ({"model": "mlp"}, "model must be .* got a str"),
        ({"data": 3}, "data must be a data spec .* got an int"),
        ({"reduction": "sum"}, "reduction and loss_weight say what an own loss is, but loss=.cross-entropy. is a name"),
        ({"loss_weight": len}, "reduction and loss_weight say what an own loss is"),
        ({"loss": torch.nn.MSELoss(reduction="sum")}, "a MSELoss with reduction=.sum., but the task says .mean."),
        ({"loss": None}, "loss must be a name, or a function .* got None"),
        ({"loss": max, "reduction": "avg"}, "reduction must be 'mean' or 'sum', got 'avg'"),
        ({"loss": max, "loss_weight": 3}, "loss_weight must be a function .* got "),
        ({"loss": max, "loss_weight": len, "reduction": "sum"}, "loss_weight is for a weighted mean.*give one of them"),
        ({"optimizer": 0.1}, "optimizer must be a name, or a function .* got a float"),
    ],
)
def test_a_task_is_checked_when_it_is_made(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Task(**{"model": lambda data: torch.nn.Linear(1, 1), **wrong})  # type: ignore[arg-type]


def test_the_package_hands_out_what_a_task_file_needs() -> None:
    assert tasks.Task is Task
