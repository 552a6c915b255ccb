"""The same run on a GPU: every engine that can drive one gives the CPU's answer."""

from pathlib import Path
from typing import Any

import pytest
import torch

import manyhands
from manyhands.config import RunConfig
from manyhands.launch.blas_threads.count import process_settings
from manyhands.replica.random import uniform_bits
from manyhands.request import resolve
from manyhands.verification.verify import verify

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
    pytest.mark.timeout(300),
]

ENGINES: list[dict[str, Any]] = [
    {"engine": "serial"},
    {"engine": "threads", "workers": 2},
    {"engine": "threads", "workers": 3},
    {"engine": "mpi", "workers": 2},
    {"engine": "hybrid", "workers": 2, "threads": 2},
    {"engine": "torch", "workers": 1},
    {"engine": "torch", "workers": 2},
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: "-".join(map(str, e.values())))
@pytest.mark.parametrize("sync", ["allreduce", "reduce-broadcast"])
def test_gpu_equals_cpu(tmp_path: Path, engine: dict[str, Any], sync: str) -> None:
    options = {"steps": 12, "batch_size": 50, "data": "mnist:train=500,test=100", "dtype": "float64", "out": tmp_path}
    cpu = manyhands.train("cnn", **options)
    gpu = manyhands.train("cnn", device="cuda", sync=sync, **options, **engine)
    assert gpu.device == "cuda"
    assert gpu.train_loss == pytest.approx(cpu.train_loss, rel=1e-6)
    assert gpu.test_loss == pytest.approx(cpu.test_loss, rel=1e-6)


@pytest.mark.parametrize("task", ["mlp", "cnn"])
def test_exact_bits_on_the_gpu(tmp_path: Path, task: str) -> None:
    options = {"steps": 12, "batch_size": 50, "data": "mnist:train=500,test=100", "exact": True, "device": "cuda"}
    hashes = {manyhands.train(task, out=tmp_path, **options, **engine).weights_sha256 for engine in ENGINES}
    assert len(hashes) == 1


def test_resumed_equals_uninterrupted_on_the_gpu(tmp_path: Path) -> None:
    options = {"batch_size": 50, "data": "mnist:train=500,test=100", "device": "cuda", "exact": True}
    whole = manyhands.train("cnn", steps=15, out=tmp_path / "a", **options)
    manyhands.train("cnn", steps=8, checkpoint_every=5, out=tmp_path / "b", **options)
    resumed = manyhands.train("cnn", resume=True, steps=15, out=tmp_path / "b")
    assert resumed.resumed_from == 5
    assert resumed.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("sync", ["sharded", "local-sgd:period=4", "compressed:codec=powersgd"])
def test_what_a_strategy_keeps_is_resumed_on_the_gpu(tmp_path: Path, sync: str) -> None:
    options = {"batch_size": 50, "data": "mnist:train=500,test=100", "device": "cuda", "dtype": "float64", "sync": sync}
    workers = {"engine": "threads", "workers": 2}
    whole = manyhands.train("cnn", steps=15, out=tmp_path / "a", **options, **workers)
    manyhands.train("cnn", steps=8, checkpoint_every=5, out=tmp_path / "b", **options, **workers)
    resumed = manyhands.train("cnn", resume=True, steps=15, out=tmp_path / "b")
    assert resumed.resumed_from == 5
    assert resumed.test_loss == pytest.approx(whole.test_loss, rel=1e-6)


@pytest.mark.parametrize(
    "sync",
    ["sharded", "gather-server", "overlap", "parameter-server:servers=2", "local-sgd:period=4", "average-epoch",
     "average-once", "gossip", "compressed:codec=fp16"],
)  # fmt: skip
def test_every_strategy_gives_on_the_gpu_what_it_gives_on_the_cpu(tmp_path: Path, sync: str) -> None:
    options = {"steps": 12, "batch_size": 50, "data": "mnist:train=500,test=100", "dtype": "float64", "out": tmp_path}
    workers = {"engine": "threads", "workers": 2, "sync": sync}
    cpu, gpu = (manyhands.train("cnn", device=device, **options, **workers) for device in ("cpu", "cuda"))
    assert gpu.test_loss == pytest.approx(cpu.test_loss, rel=1e-6 if "fp16" not in sync else 1e-2)


def test_random_bits_are_the_cpus() -> None:
    cpu = uniform_bits(123456789123, 7, 100, 300, torch.device("cpu"))
    assert torch.equal(cpu, uniform_bits(123456789123, 7, 100, 300, torch.device("cuda")).cpu())


def test_convolutions_keep_all_of_float32() -> None:
    images = torch.rand(16, 8, 14, 14, device="cuda")
    kernels = torch.rand(32, 8, 3, 3, device="cuda")
    with process_settings(RunConfig(task="cnn", device="cuda"), 1, 1):
        found = torch.nn.functional.conv2d(images, kernels)
    expected = torch.nn.functional.conv2d(images.double(), kernels.double())
    assert torch.allclose(found.double(), expected, rtol=1e-5)


PLAIN_CNN = """
from dataclasses import replace
from manyhands.tasks.cnn import task

task = replace(task, name="plain-cnn", optimizer="sgd", lr=0.1)  # Adam blows round-off up: it divides by gradients
"""


def test_float32_parts_by_round_off_only_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "plain_cnn.py").write_text(PLAIN_CNN)
    options = {"device": "cuda", "engine": "threads", "workers": 2, "steps": 20}
    verdict = verify(resolve(f"{tmp_path / 'plain_cnn.py'}:task", options))
    assert verdict.equal
    assert verdict.share_of_change < 1e-4


def test_stacked_folds_equal_folds_in_turn_on_the_gpu(tmp_path: Path) -> None:
    options = {"folds": 3, "epochs": 1, "data": "mnist:train=600,test=100", "device": "cuda", "out": tmp_path}
    stacked, in_turn = (manyhands.cross_validate("mlp", stacked=choice, **options) for choice in (True, False))
    assert all(fold.stacked for fold in stacked.folds)
    assert [fold.loss for fold in stacked.folds] == pytest.approx([fold.loss for fold in in_turn.folds], rel=1e-5)
