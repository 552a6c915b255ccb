"""n workers give the answer of one with inputs and targets of every kind, in memory or read sample by sample."""

from pathlib import Path
from typing import Any

import any_data
import pytest
import torch
from safetensors.torch import load_file

import manyhands
from manyhands import RunRecord
from manyhands.errors import ManyhandsError

TASKS = any_data.HERE


def weights(out: Path, record: RunRecord) -> torch.Tensor:
    tensors = load_file(out / record.id / "model.safetensors")
    return torch.cat([t.flatten() for _, t in sorted(tensors.items())])


def trained(out: Path, name: str, **options: Any) -> tuple[RunRecord, torch.Tensor]:
    record = manyhands.train(f"{TASKS}:{name}", out=out, dtype="float64", **options)
    return record, weights(out, record)


@pytest.mark.parametrize("name", any_data.ALL)
def test_several_workers_give_the_answer_of_one(tmp_path: Path, name: str) -> None:
    record, expected = trained(tmp_path, name)
    assert record.warnings == []
    for options in ({"workers": 2}, {"workers": 3, "micro_batch": 1}, {"workers": 7, "batch_size": 8}):
        other, got = trained(tmp_path, name, engine="threads", **options)
        assert torch.allclose(got, expected, rtol=0, atol=1e-12)
        assert other.test_loss == pytest.approx(record.test_loss, rel=1e-12)
    exact = [trained(tmp_path, name, exact=True, **o)[0] for o in ({}, {"engine": "threads", "workers": 3})]
    assert exact[0].weights_sha256 == exact[1].weights_sha256


@pytest.mark.parametrize("name", ["augmented", "collated"])
def test_processes_that_read_ahead_change_nothing(tmp_path: Path, name: str) -> None:
    expected, _ = trained(tmp_path, name)
    ahead, _ = trained(tmp_path, name, data_workers=2)
    assert ahead.weights_sha256 == expected.weights_sha256
    assert ahead.test_loss == expected.test_loss
    _several, got = trained(tmp_path, name, engine="threads", workers=2, data_workers=2, micro_batch=3)
    assert torch.allclose(got, weights(tmp_path, expected), rtol=0, atol=1e-12)
    exact = [
        trained(tmp_path, name, exact=True, **o)[0].weights_sha256
        for o in ({}, {"engine": "threads", "workers": 2, "data_workers": 1})
    ]
    assert exact[0] == exact[1]


@pytest.mark.parametrize("name", ["collated", "dicts"])
def test_processes_of_mpi_give_the_answer_of_one(tmp_path: Path, name: str) -> None:
    expected, _ = trained(tmp_path, name)
    _, got = trained(tmp_path, name, engine="mpi", workers=2, data_workers=1)
    assert torch.allclose(got, weights(tmp_path, expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sync", ["local-sgd:period=2", "average-epoch", "parameter-server"])
def test_other_strategies_take_such_data(tmp_path: Path, sync: str) -> None:
    records = [
        trained(tmp_path, "augmented", engine="threads", workers=2, sync=sync, data_workers=n, exact=False)[0]
        for n in (0, 1)
    ]
    assert records[0].weights_sha256 == records[1].weights_sha256


@pytest.mark.parametrize("data_workers", [0, 2])
def test_a_run_resumed_amid_an_epoch_sees_the_same_samples(tmp_path: Path, data_workers: int) -> None:
    whole, _ = trained(tmp_path, "augmented", steps=7)
    part, _ = trained(tmp_path, "augmented", steps=3, checkpoint_every=3)
    rest = manyhands.train(f"{TASKS}:augmented", out=tmp_path, resume=part.id, steps=7, data_workers=data_workers)
    assert rest.resumed_from == 3
    assert rest.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("data_workers", [0, 1])
def test_a_sample_that_cannot_be_read_is_named(
    tmp_path: Path, data_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANYHANDS_TEST_END", "raise")
    with pytest.raises(
        ManyhandsError, match="sample 17 of the training data of any_data cannot be read: ValueError: no"
    ):
        trained(tmp_path, "ending", data_workers=data_workers)


def test_a_process_that_ends_is_named_with_its_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_TEST_END", "kill")
    says = "a data worker ended with status 3 while it read sample 17 of the training data of any_data"
    for options in ({}, {"engine": "threads", "workers": 2}):
        with pytest.raises(ManyhandsError, match=says):
            trained(tmp_path, "ending", data_workers=1, **options)
