"""Calibrate a real GPU, and hold a prediction against a run."""

from pathlib import Path

import pytest
import torch

import manyhands
from manyhands.calibration.gpu.calibrate import calibrate_gpu
from manyhands.calibration.gpu.calls import time_copies
from manyhands.record.calibration import Calibration
from manyhands.simulation.simulate import simulate
from manyhands.training.plan import NEVER

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """Calibrate a small task."""
    return calibrate_gpu(["mlp"], path=tmp_path_factory.mktemp("calibration") / "gpu.json", budget_s=10.0)


def test_a_gpu_is_calibrated(made: Calibration) -> None:
    comm = made.comms["torch"]
    assert made.device == "cuda"
    assert torch.cuda.get_device_name(0) in made.machine
    assert bool(comm.formula) == (torch.cuda.device_count() == 1)
    assert comm.launch_us > 0, "nccl has started"
    assert all(min(point.compute_ms) > 0 for point in made.tasks["mlp"].points)


def test_large_copies_take_longer_than_small_ones() -> None:
    copies = time_copies(torch.device("cuda", 0))
    assert min(copies[-1].to_device_us) > min(copies[0].to_device_us)
    assert min(copies[-1].to_host_us) > min(copies[0].to_host_us)


def test_a_run_takes_about_what_was_predicted(made: Calibration, tmp_path: Path) -> None:
    (row,) = simulate("mlp", workers=[1], device="cuda", calibration=made, batch_size=200).rows
    run = manyhands.train("mlp", device="cuda", batch_size=200, steps=1000, eval_every=NEVER, out=tmp_path)
    assert 1 / 3 < row.step_ms.value / run.steady.step_ms < 3, "the right order: `validate` judges the rest"
