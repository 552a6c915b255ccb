"""Calibrate a GPU, for which a CPU stands in where the code is the same; and what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.calibration.gpu import calibrate as module
from manyhands.calibration.gpu import calls, steps
from manyhands.calibration.gpu.calibrate import calibrate_gpu, gpu_rows
from manyhands.calibration.gpu.calls import measured_costs
from manyhands.cli.main import main
from manyhands.errors import UserError
from manyhands.record.calibration import Calibration, open_calibration
from manyhands.request import resolve
from manyhands.simulation.simulate import simulate
from manyhands.tasks import load
from manyhands.tasks.setup import load_data
from manyhands.validation import closing

TINY = f"{Path(__file__).parents[2] / 'conformance' / 'tiny.py'}:mlp"


@pytest.fixture(autouse=True)
def moments(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for moments."""
    monkeypatch.setattr(module, "VISIT_S", (1e-3, 2e-3))
    monkeypatch.setattr(module, "ROUNDS", 2)
    monkeypatch.setattr(calls, "COPIES", (8, 4096))
    monkeypatch.setattr(calls, "ADDED", 4096)
    monkeypatch.setattr(calls, "REPEATS", 3)
    monkeypatch.setattr(steps, "REPEATS", 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """Calibrate a tiny task once for all tests that only want to have one."""
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        return tiny_calibration(tmp_path_factory.mktemp("calibration") / "gpu.json")


def tiny_calibration(path: Path, **options: Any) -> Calibration:
    return calibrate_gpu([TINY], path=path, device="cpu", budget_s=1.0, **options)


@pytest.mark.parametrize(("batch", "samples", "least"), [(64, 10_000, 1), (60_000, 60_000, 1), (5, 6, 2), (1, 1, 1)])
def test_rows_reach_from_the_least_to_all_samples(batch: int, samples: int, least: int) -> None:
    rows = gpu_rows(batch, samples, least)
    assert rows == sorted(set(rows))
    assert {min(least, samples), batch, samples} <= set(rows)
    assert len(rows) <= 20


def test_a_second_micro_batch_is_measured_with_its_first_row() -> None:
    assert {1024, 1025, 2048, 2049, 4096, 4097, 8192, 32768} <= set(gpu_rows(128, 60_000, piece=1024))
    assert {8192, 16_000, 16_001, 32_000, 32_001, 60_000} <= set(gpu_rows(60_000, 60_000, piece=16_000))
    assert not {16_384, 32_768} & set(gpu_rows(60_000, 60_000, piece=16_000))


def test_steps_copies_and_a_formula_are_kept(made: Calibration) -> None:
    costs, comm = made.tasks[TINY], made.comms["torch"]
    assert made.device == "cuda"
    assert [point.rows for point in costs.points] == gpu_rows(costs.batch_size, costs.samples)
    assert all(min(point.compute_ms) > 0 and min(point.serial_ms) > 0 for point in costs.points)
    assert all(len(point.compute_ms) == 2 * point.block for point in costs.points), "two rounds"
    assert (comm.formula, comm.points, comm.ranks) == ("nvlink", [], 1)
    assert comm.launch_us > 0
    assert [copy.num_bytes for copy in made.copies] == [8, 4096]
    assert made.engines(TINY) == ["torch"]


def test_what_was_measured_can_be_predicted(made: Calibration) -> None:
    record = simulate(TINY, workers=[1, 2, 8], device="cuda", calibration=made, cluster="nvlink", steps=20)
    assert [row.workers for row in record.rows] == [1, 2, 8]
    assert all(row.step_ms.low <= row.step_ms.value <= row.step_ms.high for row in record.rows)


def test_another_link_is_taken_and_the_file_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    tiny_calibration(path)
    again = tiny_calibration(path, link="pcie")
    assert again.comms["torch"].formula == "pcie"
    assert open_calibration(path) == again
    with pytest.raises(UserError, match="there is no link between GPUs 'ethernet-1g'"):
        tiny_calibration(path, link="ethernet-1g")


def test_a_file_of_cpus_is_not_overwritten(tmp_path: Path, made: Calibration) -> None:
    path = tmp_path / "cpu.json"
    before = made.model_copy(update={"device": "cpu"}).model_dump_json()
    path.write_text(before)
    with pytest.raises(UserError, match="the calibration of something else"):
        tiny_calibration(path)
    assert path.read_text() == before


@pytest.mark.timeout(120)
def test_calls_of_several_ranks_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(TINY, {"engine": "serial"})
    task = load(TINY)
    comm = measured_costs(config, task, load_data(task, config), [2], 1.0, "2025-01-01 00:00:00")
    assert (comm.formula, comm.ranks) == ("", 2)
    assert {point.call for point in comm.points} == {
        "all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter"
    }  # fmt: skip
    assert comm.error_pct >= 0
    assert comm.launch_us == 1.0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--device cuda --engines mpi", "GPUs are calibrated with engine torch"),
        ("--device cuda --ranks 2", "--ranks is for CPUs"),
        ("--device gpu", "there is no device 'gpu'"),
        ("--link pcie", "--link belongs to --device cuda"),
        ("--device cuda", "torch sees no GPU here"),
    ],
)
def test_bad_requests(
    words: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["manyhands", "calibrate", "mlp", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code
    assert says in capsys.readouterr().err


def test_the_table_says_what_was_not_measured(
    made: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(closing, "calibrate_gpu", lambda names, **options: made)
    path = tmp_path / "gpu.json"
    words = ["manyhands", "calibrate", TINY, "--device", "cuda", "--calibration", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "by formula for nvlink, not measured here" in shown
    assert "to the GPU" in shown
