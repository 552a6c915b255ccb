"""Predictions for GPUs: laws on made-up calibrations, and what is refused."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_gpu import LAUNCH_US, gpu_calibration, gpu_step_ms
from made_up_machine import NUMEL, SAMPLES, calibration, network

from manyhands.errors import UserError
from manyhands.model.between import PROCESSES, gpu_spread
from manyhands.model.cluster import READY_CLUSTERS, READY_LINKS
from manyhands.model.collectives import best_s
from manyhands.model.crowd import contention, step_times
from manyhands.record.calibration import Calibration, CommCosts, differences, machine_name, read_calibration
from manyhands.record.simulation import SimulationRecord
from manyhands.simulation import simulate as module

Predict = Callable[..., SimulationRecord]
HERE = {"host": "h", "cpu": "c", "cores": 4, "gpus": ["G", "G"]}


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Simulate a made-up task on made-up GPUs."""
    monkeypatch.setattr(module, "TaskNetwork", lambda name, made, kept: network(name))

    def run(workers: Any = (1, 2, 4, 8), **options: Any) -> SimulationRecord:
        usual = {"device": "cuda", "calibration": gpu_calibration(), "steps": 40}
        return module.simulate("mlp", workers=workers, **{**usual, **options})

    return run


@pytest.mark.parametrize("method", ["events", "formula"])
@pytest.mark.parametrize("cluster", [None, "nvlink", "pcie"])
@pytest.mark.parametrize("sync", ["allreduce", "local-sgd:period=4", "sharded", "reduce-broadcast"])
def test_figures_are_finite_and_lie_in_their_intervals(predict: Predict, sync: str, cluster: Any, method: str) -> None:
    record = predict(syncs=sync, cluster=cluster, method=method)
    assert (record.engine, record.device) == ("torch", "cuda")
    for row in record.rows:
        for estimate in (row.step_ms, row.epoch_s, row.speed_up, row.efficiency):
            assert 0 < estimate.low <= estimate.value <= estimate.high < math.inf


@given(knee=st.sampled_from([1, 64, 512, 5000]), batch=st.sampled_from([64, 1000, SAMPLES]))
def test_more_gpus_never_compute_longer(knee: float, batch: int) -> None:
    known = gpu_calibration(knee=knee)
    times = [step_times(known, "mlp", "torch", batch / n, n).quiet_s for n in (2, 4, 8, 64)]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(times))


def test_a_gpu_has_no_neighbours_to_share_with() -> None:
    known = gpu_calibration(wait=1.0)
    for sharing in (2, 8, 1000):
        assert contention(known, "mlp", "torch", 64, sharing) == pytest.approx((1.0, 1.0, 1.0))


def test_one_gpu_takes_what_was_measured(predict: Predict) -> None:
    for batch in (32, 64, 4096):
        (row,) = predict([1], batch_size=batch).rows
        assert row.step_ms.value == pytest.approx(gpu_step_ms(batch), rel=0.02)


def test_ranks_that_exchange_wait_for_their_gpus(predict: Predict) -> None:
    known = gpu_calibration(wait=2.0, noise=0.0)
    alone, two = predict([1, 2], calibration=known, method="formula").rows
    assert two.compute_ms + two.serial_ms == pytest.approx(2 * (alone.compute_ms + alone.serial_ms), rel=0.01)


@pytest.mark.parametrize("link", ["nvlink", "pcie"])
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("method", ["events", "formula"])
def test_a_call_takes_its_launch_and_what_the_link_says(
    predict: Predict, link: str, cluster: bool, method: str
) -> None:
    known = gpu_calibration(link=link)
    (row,) = predict([8], calibration=known, cluster=READY_CLUSTERS[link] if cluster else None, method=method).rows
    gamma = 1e-9 / known.comms["torch"].reduce_gigabyte_per_s
    messages_s = float(best_s("all-reduce", np.array(8.0), np.array(4.0 * NUMEL), READY_LINKS[link].link(), gamma))
    assert row.comm_ms == pytest.approx(1e3 * messages_s + 1e-3 * LAUNCH_US, rel=0.1)


def test_a_formula_widens_the_interval_and_says_so(predict: Predict) -> None:
    said: list[str] = []
    one, eight = predict([1, 8], say=said.append).rows
    assert eight.step_ms.high / eight.step_ms.low > one.step_ms.high / one.step_ms.low > 1
    assert any("by formula (nvlink), not measured" in sentence for sentence in said)


def test_the_knee_is_less_certain_than_the_points_beside_it() -> None:
    known = gpu_calibration(knee=300)
    assert gpu_spread(known, "mlp", 256) == PROCESSES
    assert gpu_spread(known, "mlp", 300) > gpu_spread(known, "mlp", 6000) >= PROCESSES
    assert gpu_spread(calibration(), "mlp", 300) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": "mpi"}, "with --device cuda use --engine torch"),
        ({"engine": "threads"}, "with --device cuda use --engine torch"),
        ({"device": "tpu"}, "there is no device to predict 'tpu'"),
        ({"syncs": "async-server"}, "'async-server' cannot be predicted on GPUs: its ranks send messages"),
        ({"syncs": "allreduce,gossip"}, "'gossip' cannot be predicted on GPUs"),
        ({"syncs": "compressed:codec=fp16"}, "codec"),
        ({"syncs": "overlap"}, "when a GPU has finished which gradients"),
        ({"calibration": calibration()}, "calibration of CPUs.*run 'manyhands calibrate mlp --device cuda'"),
        ({"device": "cpu"}, "calibration of GPUs.*or --device cuda"),
    ],
)
def test_what_gpus_cannot_do_is_said_in_a_sentence(predict: Predict, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        predict(**options)
    assert "\n" not in str(error.value)


def test_a_calibration_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    path, known = tmp_path / "gpu.json", gpu_calibration()
    path.write_text(known.model_dump_json())
    assert read_calibration(path, "mlp", "torch", device="cuda") == known
    with pytest.raises(UserError, match=r"task 'cnn' .* run 'manyhands calibrate cnn --device cuda'"):
        read_calibration(path, "cnn", "torch", device="cuda")
    with pytest.raises(UserError, match=r"run 'manyhands calibrate mlp --device cuda', or give --calibration FILE"):
        read_calibration(tmp_path / "none.json", "mlp", device="cuda")


def test_a_calibration_of_another_time_is_of_cpus() -> None:
    before = calibration().model_dump(exclude={"device", "copies"})
    assert Calibration.model_validate(before).device == "cpu"


@pytest.mark.parametrize(
    "change", [{"formula": ""}, {"points": [{"call": "send", "ranks": 2, "num_bytes": 0, "us": [1]}]}]
)
def test_costs_are_measured_or_by_formula(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="fitted to points or follow a formula"):
        CommCosts.model_validate({**gpu_calibration().comms["torch"].model_dump(), **change})


def test_gpus_are_named_with_the_processor_that_drives_them() -> None:
    assert machine_name(HERE, "cuda") == "h, 2 × G, c"
    assert machine_name({**HERE, "gpus": []}, "cuda") == "h, no GPU, c"
    assert machine_name(HERE) == "h, c, 4 cores"
    known = gpu_calibration().model_copy(update={"machine": "h, 2 × G, c", "versions": {}})
    assert differences(known, HERE, {}) == []
    assert "another machine" in differences(known, {**HERE, "gpus": []}, {})[0]
