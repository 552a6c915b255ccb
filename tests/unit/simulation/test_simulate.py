"""From a request to a record of predictions."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_machine import BATCH, ETHERNET, SAMPLES, calibration, constant, network, varying

from manyhands.errors import UserError
from manyhands.model.cluster import SlowNode
from manyhands.model.crowd import step_times
from manyhands.model.runs.correction import NO_CORRECTION
from manyhands.record.simulation import Estimate, SimulationDir, SimulationRecord, SimulationRow
from manyhands.simulation import simulate as module
from manyhands.simulation.parts import TaskNetwork
from manyhands.simulation.request import read_counts, read_syncs
from manyhands.simulation.rows import with_failures
from manyhands.simulation.spread import resampled, uncertainty

Predict = Callable[..., SimulationRecord]


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Simulate a made-up task on a made-up machine."""
    monkeypatch.setattr(module, "TaskNetwork", lambda name, made, kept: network(name))

    def run(nodes: Any = (1, 2, 4), **options: Any) -> SimulationRecord:
        given = {"cluster": ETHERNET, "calibration": calibration(varying), "steps": 40, **options}
        return module.simulate("mlp", None if "workers" in options else nodes, **given)

    return run


def row(record: SimulationRecord, nodes: int, sync: str = "allreduce") -> SimulationRow:
    (found,) = [each for each in record.rows if (each.nodes, each.sync) == (nodes, sync)]
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", [4]),
        ("4,1, 2,2", [1, 2, 4]),
        ("1,2,4,...,1024", [2**k for k in range(11)]),
        ("1,2,4,…,100", [1, 2, 4, 8, 16, 32, 64, 100]),
        ("1,2,...,5", [1, 2, 3, 4, 5]),
        ("10,20,30,..,55", [10, 20, 30, 40, 50, 55]),
        ([3, 1], [1, 3]),
    ],
)
def test_counts(text: Any, expected: list[int]) -> None:
    assert read_counts(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "nodes must be from 1 to 1,000,000, got 0"),
        ("-2", "got -2"),
        ("two", "whole numbers, such as 1,2,4"),
        ("1.5", "got '1.5'"),
        ("", "at least one number"),
        ("1,...,8", "dots in nodes stand between"),
        ("1,2,...", "dots in nodes stand between"),
        ("2,1,...,8", "an increasing sequence such as 1,2, not 2,1"),
        ("1,2,...,999999999", "got 999999999"),
        ("1,2,...,300000", "at most 200,000"),
    ],
)
def test_bad_counts(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_counts(text)


def test_strategies_are_cut_at_their_commas() -> None:
    text = "allreduce, compressed:codec=topk,ratio=0.01,local-sgd:period=8,allreduce"
    assert read_syncs(text) == ["allreduce", "compressed:codec=topk,ratio=0.01", "local-sgd:period=8"]


def test_one_worker_is_as_fast_as_one_worker(predict: Predict) -> None:
    found = predict([1], calibration=calibration(constant))
    assert row(found, 1).speed_up.value == pytest.approx(1)
    assert row(found, 1).step_ms.value == pytest.approx(found.alone_ms.value) == pytest.approx(7.65)
    assert found.alone_batch == BATCH


def test_figures_follow_from_the_step(predict: Predict) -> None:
    found = predict(calibration=calibration(constant))
    for each in found.rows:
        step_s = each.step_ms.value / 1e3
        assert each.epoch_s.value == pytest.approx(math.ceil(SAMPLES / BATCH) * step_s)
        assert each.speed_up.value == pytest.approx(7.65e-3 / step_s)
        assert each.efficiency.value == pytest.approx(each.speed_up.value / each.nodes)
        assert each.cost is not None
        assert each.cost.value == pytest.approx(each.nodes * 3.6 * each.epoch_s.value / 3600)
        parts = each.compute_ms + each.serial_ms + each.comm_ms + each.wait_ms
        assert parts == pytest.approx(each.step_ms.value)
        assert each.method == "events"


def test_a_batch_per_worker_grows_with_them(predict: Predict) -> None:
    found = predict([1, 4, 16], batch_per_worker=32, calibration=calibration(constant))
    assert [each.batch_size for each in found.rows] == [32, 128, 512]
    gains = [each.speed_up.value for each in found.rows]
    assert gains == sorted(gains)
    assert gains[0] == pytest.approx(1)
    assert all(gain <= each.workers for gain, each in zip(gains, found.rows, strict=True))
    assert [each.compute_ms for each in found.rows] == pytest.approx([4.2] * 3)


def test_a_batch_is_never_more_than_the_samples(predict: Predict) -> None:
    assert row(predict([64], batch_per_worker=SAMPLES), 64).batch_size == SAMPLES


def test_that_a_batch_is_cut_is_said(predict: Predict) -> None:
    said: list[str] = []
    predict([2, 64, 128], batch_per_worker=SAMPLES // 64, calibration=calibration(constant), say=said.append)
    assert said[-1] == "from 128 nodes on a step has all 10,000 samples, which is less than 156 a worker"


def test_the_same_seed_gives_the_same(predict: Predict) -> None:
    first, again, other = predict(seed=3), predict(seed=3), predict(seed=4)
    assert first.rows == again.rows
    assert first.rows != other.rows


def test_intervals_hold_the_value_and_are_as_wide_as_the_runs_differ(predict: Predict) -> None:
    steady, shaky = predict(calibration=calibration(constant)), predict()
    for each in (*steady.rows, *shaky.rows):
        for value in (each.step_ms, each.epoch_s, each.speed_up, each.efficiency, each.cost):
            assert value is not None
            assert value.low <= value.value <= value.high
    assert steady.rows[-1].step_ms.low == pytest.approx(steady.rows[-1].step_ms.high)
    assert shaky.rows[-1].step_ms.high > 1.01 * shaky.rows[-1].step_ms.low


def test_what_the_formulas_miss_widens_the_interval(predict: Predict) -> None:
    narrow, wide = (predict([8], calibration=calibration(constant, error_pct=error)) for error in (0.0, 20.0))
    (a,), (b,) = narrow.rows, wide.rows
    assert a.step_ms.value == b.step_ms.value
    share = 0.2 / 0.6745 * b.comm_ms / b.step_ms.value
    assert math.log(b.step_ms.high / b.step_ms.value) == pytest.approx(1.833 * share, rel=0.01)


def test_calls_of_more_threads_than_were_measured_are_as_sure_as_their_lock() -> None:
    known = calibration(constant)
    shared = known.comms["threads"].model_copy(update={"model": "slices"})
    known = known.model_copy(update={"comms": {**known.comms, "threads": shared}})
    about = {"rows": 8, "sharing": 1, "on_host": True}
    cores = known.cores.model_copy(update={"lock_us": {2: 10.0, 16: 30.0}})
    timed = known.model_copy(update={"cores": cores})
    two, many = (uncertainty(timed, "mlp", "threads", NO_CORRECTION, ranks=ranks, **about).calls for ranks in (2, 16))
    guessed = uncertainty(known, "mlp", "threads", NO_CORRECTION, ranks=16, **about).calls
    assert two == 0
    assert many == pytest.approx(math.log(1.2**2) / (2 * 1.645), rel=1e-3)
    assert guessed == pytest.approx(math.log(8 * 1.2) / (2 * 1.645), rel=1e-3)
    assert uncertainty(known, "mlp", "mpi", NO_CORRECTION, ranks=16, **about).calls == 0, "which has no lock"


def test_a_node_may_have_several_workers(predict: Predict) -> None:
    cluster = ETHERNET.model_copy(update={"cores": 4})
    by_nodes, by_workers = predict([2], cluster=cluster), predict(workers=[2, 8, 9], cluster=cluster)
    assert [(each.nodes, each.many) for each in by_nodes.rows] == [(2, "2 nodes")]
    assert by_nodes.rows[0].workers == 8
    assert [(each.nodes, each.workers) for each in by_workers.rows] == [(1, 2), (2, 8), (3, 9)]
    assert [each.many for each in by_workers.rows] == ["2 workers", "8 workers", "9 workers"]
    assert by_workers.rows[1].step_ms == by_nodes.rows[0].step_ms
    (served,) = predict(workers=[8], cluster=cluster, syncs="parameter-server").rows
    assert served.nodes == 3  # the server is on one of its own
    assert by_workers.rows[0].cost.value < by_workers.rows[1].cost.value  # type: ignore[union-attr]


def test_beyond_what_events_can_do_there_is_the_closed_form(predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.simulation.predict.MOST_RANKS", 16)
    found = predict([16, 17, 65_536], batch_per_worker=8)
    assert [each.method for each in found.rows] == ["events", "closed form", "closed form"]
    (by_formula,) = predict([16], batch_per_worker=8, method="formula").rows
    assert by_formula.method == "closed form"
    assert by_formula.step_ms.value == pytest.approx(found.rows[0].step_ms.value, rel=0.03)


def test_very_many_rows_are_worked_out_by_closed_form(predict: Predict) -> None:
    found = predict("1,2,...,1000", batch_per_worker=8)
    assert len(found.rows) == 1000
    assert {each.method for each in found.rows} == {"closed form"}
    gains = [each.speed_up.value for each in found.rows]
    assert gains[999] > gains[299] > gains[99] > gains[9]


def test_failures_cost_time(predict: Predict) -> None:
    shaky = ETHERNET.model_copy(update={"mtbf_hours": 0.01, "restart_s": 2.0})
    sound, failing = predict(), predict(cluster=shaky)
    for a, b in zip(sound.rows, failing.rows, strict=True):
        assert b.failures == pytest.approx(b.nodes * a.epoch_s.value / 36)
        assert b.epoch_s.value == pytest.approx(a.epoch_s.value * math.exp(b.nodes * 2 / 36))
        assert a.step_ms == b.step_ms


def test_failures_that_hardly_ever_happen_are_in_no_interval(predict: Predict) -> None:
    sound, rare = predict(), predict(cluster=ETHERNET.model_copy(update={"mtbf_hours": 1e6, "restart_s": 120.0}))
    for a, b in zip(sound.rows, rare.rows, strict=True):
        assert (b.epoch_s.low, b.epoch_s.high) == (a.epoch_s.low, a.epoch_s.high)


def test_failures_match_a_simulation_of_them() -> None:
    import random

    cluster = ETHERNET.model_copy(update={"mtbf_hours": 1 / 360, "restart_s": 3.0})  # one in ten seconds
    draw = random.Random(0)

    def once(work_s: float) -> float:
        now = 0.0
        while (fails := draw.expovariate(0.1)) < work_s:
            work_s -= fails
            now += fails
            while (again := draw.expovariate(0.1)) < 3.0:
                now += again
            now += 3.0
        return now + work_s

    mean = sum(once(20.0) for _ in range(4000)) / 4000
    assert with_failures(Estimate(20.0, 20.0, 20.0), 1, cluster)[0].value == pytest.approx(mean, rel=0.03)


def test_slow_nodes_are_waited_for_and_compared_with_a_sound_one(predict: Predict) -> None:
    slow = ETHERNET.model_copy(update={"slow": (SlowNode(node=0, factor=2.0),)})
    sound, held_up = (
        predict(calibration=calibration(constant)),
        predict(calibration=calibration(constant), cluster=slow),
    )
    assert held_up.alone_ms == sound.alone_ms
    assert row(held_up, 1).speed_up.value == pytest.approx(0.5)
    assert row(held_up, 4).step_ms.value == pytest.approx(row(sound, 4).step_ms.value + 2.6 + 0.25, abs=0.01)


def test_without_a_cluster_it_is_this_host(predict: Predict) -> None:
    found = predict(workers=[1, 2], cluster=None, calibration=calibration(constant, factor=1.5), batch_per_worker=64)
    assert found.cluster == "this host"
    assert found.rows[1].compute_ms == pytest.approx(1.5 * 7.4)
    assert found.rows[1].cost is None
    assert found.rows[1].comm_ms == pytest.approx(5e-3 + 4 * 235_146 / 1e7, rel=0.01)


def test_the_record_is_kept(predict: Predict, tmp_path: Path) -> None:
    found = predict(out=tmp_path)
    assert SimulationDir(tmp_path / found.id).read() == found


def test_ctrl_c_keeps_what_was_predicted(predict: Predict, tmp_path: Path) -> None:
    def stop(pulse: module.SimulationPulse) -> None:
        if pulse.number == 4:
            raise KeyboardInterrupt

    found = predict(out=tmp_path, observe=stop)
    assert found.status == "interrupted"
    assert [each.nodes for each in found.rows] == [1, 2]
    assert SimulationDir(tmp_path / found.id).read().status == "interrupted"


def test_resampling_keeps_blocks_and_pairs_together() -> None:
    known = calibration(varying)
    drawn = resampled(known, "mlp", "mpi", 0)
    (point, *_), (before, *_) = drawn.tasks["mlp"].points, known.tasks["mlp"].points
    blocks = {tuple(before.compute_ms[i : i + 10]) for i in range(0, len(before.compute_ms), 10)}
    found = {tuple(point.compute_ms[i : i + 10]) for i in range(0, len(point.compute_ms), 10)}
    assert found < blocks
    means = [step_times(each, "mlp", "mpi", 64, 1).whole_s.mean() for each in (known, drawn)]
    assert means[1] == pytest.approx(means[0], rel=0.02)
    assert means[1] != means[0]
    assert resampled(known, "mlp", "mpi", 0) == drawn


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cluster": "ethernet-2g"}, "there is no cluster 'ethernet-2g'; did you mean 'ethernet-10g'|ethernet-1g"),
        ({"syncs": "alreduce"}, "did you mean 'allreduce'"),
        ({"syncs": ""}, "syncs must name at least one"),
        ({"syncs": "async-server:replay=x"}, "cannot replay"),
        ({"engine": "mpii"}, "did you mean 'mpi'"),
        ({"method": "magic"}, "there is no method 'magic'"),
        ({"steps": -1}, "steps must be at least 1"),
        ({"batch_size": "0"}, "batch-size must be a whole number or 'full'"),
        ({"batch_size": "8", "batch_per_worker": 8}, "not both"),
        ({"batch_per_worker": 0}, "batch-per-worker must be at least 1, got 0"),
        ({"nodes": None}, "--nodes 1,2,4 or --workers"),
        ({"nodes": [1_000_000]}, "1000000 ranks are more than the cluster has room for"),
        ({"nodes": [100_000], "syncs": "parameter-server"}, "100001 ranks are more"),
    ],
)
def test_bad_requests(predict: Predict, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        predict(**options)


def test_what_a_given_calibration_lacks_is_said() -> None:
    with pytest.raises(UserError, match=r"task 'cnn' is not calibrated; run 'manyhands calibrate cnn'"):
        module.find_calibration(calibration(), "cnn", "mpi")
    with pytest.raises(
        UserError,
        match=r"engine torch is not calibrated with task 'mlp'; run 'manyhands calibrate mlp --engines torch'",
    ):
        module.find_calibration(calibration(), "mlp", "torch")


def test_an_uncalibrated_machine(predict: Predict, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    with pytest.raises(UserError, match=f"this machine is not calibrated.* --calibration {path}'"):
        predict(calibration=path)


def test_inside_mpiexec_there_is_nothing_to_do(predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "outer_world", lambda: object())
    with pytest.raises(UserError, match="without mpiexec"):
        predict()


def test_a_task_that_has_changed_must_be_calibrated_again(tiny: Callable[[str], str]) -> None:
    name = tiny("mlp")
    made = TaskNetwork(name, "now")
    known = calibration(constant, task=made.config.task)
    with pytest.raises(UserError, match="has changed since it was calibrated"):
        made.check_calibrated(known)
    costs = known.tasks[made.config.task]
    outline = made.outline(1)
    right = {"parameters": outline.num_weights, "weight_bytes": outline.num_bytes, "samples": made.samples}
    made.check_calibrated(known.model_copy(update={"tasks": {costs.task: costs.model_copy(update=right)}}))
