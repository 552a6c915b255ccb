"""Cross-validation on MPI processes: the bits of one worker, and nobody left behind."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from manyhands.crossval.record import CrossvalRecord
from manyhands.crossval.run import cross_validate
from manyhands.launch.spawn import find_mpiexec

TINY = Path(__file__).parents[1] / "conformance" / "tiny.py"
COMMAND = [sys.executable, "-m", "manyhands", "crossval"]


def crossval(out: Path, network: str = "mlp", **options: Any) -> CrossvalRecord:
    settings = {"folds": 5, "epochs": 2, "baseline": False, "blas_threads": 1, **options}
    return cross_validate(f"{TINY}:{network}", out=out, **settings)


def bits(record: CrossvalRecord) -> list[tuple[float, float, str]]:
    return [(f.accuracy, f.loss, f.weights_sha256) for f in record.folds]


@pytest.mark.parametrize(("workers", "network", "stacked"), [(2, "conv", False), (3, "adam", True), (4, "mlp", True)])
def test_mpi_gives_the_bits_of_one_worker(tmp_path: Path, workers: int, network: str, stacked: bool) -> None:
    many = crossval(tmp_path, network, engine="mpi", workers=workers, stacked=stacked)
    assert bits(many) == bits(crossval(tmp_path, network, stacked=stacked))
    assert all(f.stacked == stacked for f in many.folds)


def test_more_mpi_workers_than_folds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folds": 2, "exact": True, "split_data": True, "nodes": 1}
    alone, many = crossval(tmp_path, **options), crossval(tmp_path, engine="mpi", workers=3, **options)
    assert bits(many) == bits(alone)
    assert many.hold_out == alone.hold_out


def test_under_the_users_own_mpiexec(tmp_path: Path) -> None:
    command = [*find_mpiexec(), "-n", "2", *COMMAND, f"{TINY}:mlp", "--folds", "3", "--epochs", "2", "--json"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    record = CrossvalRecord.model_validate(json.loads(found.stdout))
    assert record.baseline_s is None, "there is no room for another run"
    assert bits(record) == bits(crossval(tmp_path, folds=3))


NORM = """
from torch import nn
from manyhands import Task

task = Task(
    model=lambda data: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    data="synthetic:samples=90,features=12,classes=3,test=23,seed=5",
    batch_size=2,
)
"""


def test_a_worker_alone_is_not_held_to_what_many_could_not_share(tmp_path: Path) -> None:
    """Two workers would have one row each of a batch of two, but each has whole folds."""
    (tmp_path / "own.py").write_text(NORM)
    command = [*find_mpiexec(), "-n", "2", *COMMAND, "own.py:task", "--folds", "3", "--steps", "4", "--json"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["folds"]) == 3


def test_ctrl_c_leaves_no_worker(tmp_path: Path) -> None:
    options = ["--folds", "4", "--epochs", "100000", "--engine", "mpi", "--workers", "2"]
    process = subprocess.Popen([*COMMAND, f"{TINY}:mlp", *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        while not any(p.stat().st_size for p in tmp_path.glob("runs/*/live/pulses.jsonl")):
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.05)
        ranks = [p for p in psutil.Process(process.pid).children(recursive=True) if p.is_running()]
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert ranks
    assert not psutil.wait_procs(ranks, timeout=5)[1]
