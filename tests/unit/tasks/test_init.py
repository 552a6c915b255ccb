"""Weights to begin with: taken by name and shape, from a file or a run, and never again after a checkpoint."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import manyhands
from manyhands import Dataset, Task
from manyhands.config import read_toml
from manyhands.errors import UserError
from manyhands.record.run import RunDir


def _weights(out: Path, run_id: str) -> dict[str, torch.Tensor]:
    return load_file(RunDir.find(out, run_id).model)


@pytest.mark.parametrize("way", ["id", "folder", "last", "file"])
def test_a_run_begins_with_the_weights_of_another(train, tmp_path: Path, way: str) -> None:  # type: ignore[no-untyped-def]
    first = train(seed=4)
    folder = RunDir.find(tmp_path, first.id)
    names = {"id": first.id[-6:], "folder": str(folder.path), "last": "last", "file": str(folder.model)}
    second = train(lr=0.0, steps=1, init=names[way])
    assert second.weights_sha256 == first.weights_sha256
    stored = read_toml(RunDir.find(tmp_path, second.id).toml)["init"]
    assert Path(stored).is_absolute()
    assert Path(stored) == folder.model.resolve()


@pytest.mark.parametrize(("engine", "workers"), [("threads", 2), ("mpi", 2)])
def test_every_worker_begins_with_them(train, tmp_path: Path, engine: str, workers: int) -> None:  # type: ignore[no-untyped-def]
    first = train(seed=4)
    serial = train(init=first.id, exact=True)
    assert train(init=first.id, exact=True, engine=engine, workers=workers).weights_sha256 == serial.weights_sha256


def test_a_head_of_another_shape_starts_anew_and_is_said(tmp_path: Path, tiny, train, capsys) -> None:  # type: ignore[no-untyped-def]
    first = train(seed=4)
    path = tmp_path / "part.safetensors"
    tensors = _weights(tmp_path, first.id)
    head = list(tensors)[-1]
    save_file({**tensors, head: torch.zeros(9)}, path)
    second = train(init=str(path), lr=0.0, steps=1)
    fresh, mixed = _weights(tmp_path, train(lr=0.0, steps=1).id), _weights(tmp_path, second.id)
    for name, t in mixed.items():
        assert torch.equal(t, fresh[name] if name == head else tensors[name]), name
    assert f"not in '{path}' with this shape, so made anew: {head}\n" in capsys.readouterr().err


def test_a_resumed_run_does_not_need_them_any_more(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = train(seed=4)
    path = tmp_path / "start.safetensors"
    save_file(_weights(tmp_path, first.id), path)
    whole = train(init=str(path), epochs=2)
    part = train(init=str(path), epochs=1, checkpoint_every=5)
    path.unlink()
    resumed = train(resume=part.id, epochs=2)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert read_toml(RunDir.find(tmp_path, part.id).toml)["init"] == str(path)


def test_a_task_names_its_own(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = train(seed=4)
    path = str(RunDir.find(tmp_path, first.id).model)

    def model(data: Dataset) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 10))

    task = Task(model=model, data="synthetic:samples=20,features=12,classes=10,test=9", lr=0.0, init=path, name="own")
    assert manyhands.train(task, out=tmp_path).steps == 1
    weights = _weights(tmp_path, "last")
    assert torch.equal(weights["1.weight"], _weights(tmp_path, first.id)["1.weight"])


@pytest.mark.parametrize(
    ("init", "says"),
    [
        ("weights.pt", r"init 'weights.pt' is a .pt file, and reading one may run code .* safetensors"),
        ("a/b/pytorch_model.bin", "is a .bin file"),
        ("nothing.safetensors", "there is no file 'nothing.safetensors'"),
        ("no-such-run", "init 'no-such-run' is neither a safetensors file nor a run: there are no runs"),
    ],
)
def test_what_cannot_be_taken_is_refused(train, init: str, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=says):
        train(init=init)


def test_a_file_that_does_not_fit_is_refused(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "other.safetensors"
    save_file({"encoder.weight": torch.zeros(3, 3)}, path)
    with pytest.raises(UserError, match=r"none of the 1 tensors .* it has 'encoder.weight' \(3, 3\), the model"):
        train(init=str(path))
    path.write_bytes(b"no tensors")
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        train(init=str(path))
