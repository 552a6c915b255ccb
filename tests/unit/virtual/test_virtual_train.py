"""Training on nodes that are not there: the weights of n workers, and the time of the machine that is simulated."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from made_up_machine import ETHERNET, OUTLINE, calibration
from safetensors.torch import load_file

from manyhands import RunRecord
from manyhands.comm.sim import Instant, Machine
from manyhands.errors import Diverged, UserError
from manyhands.model.machine import CalibratedMachine
from manyhands.record.run import Pulse, RunDir, read_events, read_steps
from manyhands.record.virtual import VirtualRecord
from manyhands.sync import make as make_sync
from manyhands.virtual import courses as virtual_courses
from manyhands.virtual import delayed as virtual_delayed
from manyhands.virtual import events as virtual_events
from manyhands.virtual.events import Scene, simulate_steps
from manyhands.virtual.train import train_virtually

ROUND_OFF = 1e-12
"""Largest distance in float64 that another order of summation may make in some steps, relative to the weights."""

ALONE = ("local-sgd:period=3", "average-epoch", "average-once", "gossip")
"""What keeps the replicas apart; 10 steps are an epoch, so that one ends within a period."""

STEPS: dict[str, Any] = {"batch_size": 10, "steps": 14, "dtype": "float64"}

Train = Callable[..., RunRecord]
Tiny = Callable[[str], str]


class Steady(Machine):
    """A step takes one unit, or longer where a worker is slow; a call a quarter, a message an eighth."""

    def __init__(self, slow: dict[int, float] | None = None, unit_s: float = 1.0) -> None:
        self._slow, self._unit_s = slow or {}, unit_s

    def step_s(self, rank: int) -> float:
        return self._slow.get(rank, 1.0) * self._unit_s

    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        return 0.25 * self._unit_s

    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        return 0.125 * self._unit_s, 0.0


def _weights(folder: Path) -> torch.Tensor:
    stored = load_file(folder / "model.safetensors")
    return torch.cat([stored[name].flatten().double() for name in sorted(stored)])


def _losses(folder: Path) -> list[float]:
    return [step["loss"] for step in read_steps(RunDir(folder))]


def _both(
    task: str, workers: int, sync: str, tmp_path: Path, train: Train, **options: Any
) -> tuple[VirtualRecord, RunRecord]:
    """Train virtually and with the strategy's own code on virtual workers; the answers must be the same."""
    found = train_virtually(task, workers, sync=sync, machine=Instant(), out=tmp_path / "virtual", **options)
    record = train(task, engine="sim", workers=workers, sync=sync, **options)
    folder = tmp_path / record.id
    expected = _weights(folder)
    assert (_weights(tmp_path / "virtual") - expected).norm() <= ROUND_OFF * expected.norm()
    assert found.step_loss == pytest.approx(_losses(folder), rel=1e-11)
    assert found.test_loss == pytest.approx(record.test_loss, rel=1e-11)
    assert found.test_accuracy == record.test_accuracy
    return found, record


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("sync", ALONE)
def test_replicas_whose_updates_are_put_off_are_those_of_the_strategy(
    sync: str, workers: int, tmp_path: Path, train: Train, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_delayed, "BLOCK_ROWS", 2 * -(-10 // workers))  # two steps in a block
    monkeypatch.setattr(virtual_courses, "MOST_DELAYED", 1 if workers == 3 else 2)
    found, _ = _both(tiny("mlp"), workers, sync, tmp_path, train, **STEPS)
    assert found.method == "stacked"


def test_a_whole_period_is_one_block_of_steps_with_rates_of_their_own(tmp_path: Path, train: Train, tiny: Tiny) -> None:
    rates: dict[str, Any] = {"warmup": 0.5, "lr_decay": "cosine"}
    found, _ = _both(tiny("mlp"), 3, "local-sgd:period=4", tmp_path, train, **STEPS, **rates)
    assert found.method == "stacked"


def test_some_workers_have_no_rows(tmp_path: Path, train: Train, tiny: Tiny) -> None:
    _both(tiny("mlp"), 5, "local-sgd:period=3", tmp_path, train, **{**STEPS, "batch_size": 3})


@pytest.mark.parametrize(
    ("task", "sync", "more"),
    [
        ("adam", "local-sgd:period=3", {}),
        ("sigmoid", "gossip", {}),
        ("mlp", "average-once", {"fuse": False}),
    ],
)
def test_stacks_give_the_strategy_too(
    task: str, sync: str, more: dict[str, Any], tmp_path: Path, train: Train, tiny: Tiny
) -> None:
    found, _ = _both(tiny(task), 3, sync, tmp_path, train, **STEPS, **more)
    assert found.method == "stacked"


@pytest.mark.parametrize(
    ("task", "sync", "more"),
    [
        ("dropout", "local-sgd:period=3", {}),
        ("batchnorm", "allreduce", {"batch_size": 30, "batchnorm": "local"}),
        ("mlp", "compressed:codec=topk", {}),
        ("mlp", "async-server", {"eval_every": 9}),  # evaluations of a run's own make workers meet
    ],
)
def test_what_is_not_batched_runs_the_strategys_own_code(
    task: str, sync: str, more: dict[str, Any], tmp_path: Path, train: Train, tiny: Tiny
) -> None:
    found, record = _both(tiny(task), 2, sync, tmp_path, train, **{**STEPS, **more})
    assert found.method == "one-by-one"
    assert found.weights_sha256 == record.weights_sha256


@pytest.mark.parametrize("task", ["mlp", "dropout"])
def test_one_worker_stands_for_all_of_an_exact_strategy(task: str, tmp_path: Path, train: Train, tiny: Tiny) -> None:
    found, _ = _both(tiny(task), 3, "allreduce", tmp_path, train, **STEPS)
    assert found.method == "one-worker"


def test_the_virtual_eventss_order_the_events(tmp_path: Path, tiny: Tiny) -> None:
    """The workers meet after their first step; then two make all four steps while the third makes a little over one."""
    machine = Steady({2: 3.0, 3: 0.0}, unit_s=1e-3)  # rank 3 is the server
    found = train_virtually(tiny("mlp"), 3, sync="async-server", machine=machine, out=tmp_path, steps=5, batch_size=10)
    events = read_events(str(tmp_path), 0)
    assert [i for i, event in enumerate(events) if event["worker"] == 2] == [2, 7, 12, 13, 14]
    stale = [event["staleness"] for event in events]
    assert stale[7] == 4
    assert found.staleness == {"mean": pytest.approx(sum(stale) / len(stale)), "max": max(stale)}
    assert found.step_end_s == sorted(found.step_end_s)
    assert found.time_s == found.step_end_s[-1] > 5 * 3.25e-3


@pytest.mark.parametrize(("sync", "every"), [("allreduce", 1), ("local-sgd:period=4", 4), ("average-epoch", 10)])
def test_steps_end_with_the_slowest_worker(sync: str, every: int, tiny: Tiny) -> None:
    found = train_virtually(tiny("mlp"), 3, sync=sync, machine=Steady({1: 2.0}), steps=12, batch_size=10)
    ends = [2.0 * step + 0.25 * (step // every + step // 10) for step in range(1, 13)]  # workers meet after an epoch
    assert found.step_end_s == pytest.approx(ends)
    assert [point.time_s for point in found.points] == pytest.approx([ends[point.step - 1] for point in found.points])
    assert found.time_s == pytest.approx(ends[11])


@pytest.mark.parametrize(("sync", "every"), [("allreduce", 1), ("local-sgd:period=4", 4), ("average-epoch", 10)])
def test_of_a_long_run_whole_cycles_are_drawn(sync: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_events, "ENOUGH", 1)
    scene = Scene(make_sync(sync), 3, OUTLINE, steps_per_epoch=10 if every == 10 else 1000)
    ends = [2.0 * step + 0.25 * (step // every + (step // 10 if every == 10 else 0)) for step in range(1, 61)]
    assert virtual_events.step_ends(scene, Steady({1: 2.0}), 60, seed=0) == pytest.approx(ends)


@pytest.mark.parametrize("sync", ["allreduce", "local-sgd:period=3", "async-server"])
def test_points_are_what_a_shorter_run_would_end_with(sync: str, tmp_path: Path, train: Train, tiny: Tiny) -> None:
    options: dict[str, Any] = {"batch_size": 10, "dtype": "float64"}
    found = train_virtually(tiny("mlp"), 2, sync=sync, machine=Instant(), epochs=2, **options)
    shorter = train(tiny("mlp"), engine="sim", workers=2, sync=sync, epochs=1, **options)
    (middle,) = [point for point in found.points if point.step == 10]
    assert (middle.epoch, found.points[-1].step, found.points[-1].epoch) == (1.0, 20, 2.0)
    assert (middle.accuracy, middle.test_loss) == (shorter.test_accuracy, pytest.approx(shorter.test_loss))
    before, last = found.points[-2:]
    assert (before.step, last.accuracy) == (18, found.test_accuracy)
    assert last.loss == pytest.approx((10 * found.step_loss[18] + 7 * found.step_loss[19]) / 17)  # 97 samples


def test_the_first_point_with_an_accuracy_tells_its_time(tiny: Tiny) -> None:
    found = train_virtually(tiny("mlp"), 2, machine=Steady(), epochs=3)
    best = max(found.points, key=lambda point: point.accuracy)
    assert found.time_to(0.0) == found.points[0].time_s
    assert found.time_to(best.accuracy) == best.time_s
    assert found.time_to(1.1) is None
    assert VirtualRecord.model_validate_json(found.model_dump_json()) == found


def test_as_many_nodes_as_samples(tiny: Tiny) -> None:
    pulses: list[Pulse] = []
    found = train_virtually(
        tiny("mlp"), 97, sync="local-sgd", machine=Instant(), epochs=20, batch_size="full", observe=pulses.append
    )
    assert found.step_loss[-1] < found.step_loss[0]
    assert (pulses[-1].step, pulses[-1].accuracy) == (20, found.test_accuracy)


@pytest.mark.parametrize(("sync", "steps"), [("local-sgd:period=1", 3), ("gossip", 1)])
def test_256_replicas_of_mlp_make_the_steps_of_one(sync: str, steps: int, tmp_path: Path) -> None:
    """Averaged after every step they are one; and mixing keeps the mean, which is one's after the first step."""
    options: dict[str, Any] = {"machine": Instant(), "batch_size": 300, "steps": steps, "data": "mnist:test=50"}
    many = train_virtually("mlp", 256, sync=sync, out=tmp_path / "many", **options)
    train_virtually("mlp", 256, out=tmp_path / "one", **options)
    assert (many.method, many.parameters) == ("stacked", 235_146)
    assert torch.allclose(_weights(tmp_path / "many"), _weights(tmp_path / "one"), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "options", "sentence"),
    [
        (0, {}, "nodes must be at least 1, got 0"),
        (98, {}, "98 workers cannot share 97 training samples"),
        (2, {"sync": "local-sdg"}, "did you mean 'local-sgd'"),
        (2, {"sync": "gossip", "exact": True}, "--exact needs an exact sync"),
        (2, {"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_a_bad_request_is_one_sentence(nodes: int, options: dict[str, Any], sentence: str, tiny: Tiny) -> None:
    with pytest.raises(UserError, match=sentence):
        train_virtually(tiny("mlp"), nodes, machine=Instant(), **options)


def test_more_replicas_than_fit_into_memory(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000, total=2**30))
    with pytest.raises(UserError, match=r"50 replicas of .* each do not fit into the 10.0 kB of memory"):
        train_virtually(tiny("mlp"), 50, sync="local-sgd", machine=Instant())
    assert train_virtually(tiny("mlp"), 50, machine=Instant(), steps=1).method == "one-worker"


@pytest.mark.parametrize("sync", ["allreduce", "local-sgd:period=3"])
def test_a_run_that_diverges_says_when(sync: str, tiny: Tiny) -> None:
    with pytest.raises(Diverged, match=r"the (test )?loss became (nan|inf) (at|after) step \d+"):
        train_virtually(tiny("mlp"), 2, sync=sync, machine=Instant(), epochs=3, lr=1e30)


@pytest.mark.parametrize("sync", ["allreduce", "overlap", "local-sgd:period=4"])
def test_a_calibrated_machine_takes_the_time_that_a_simulation_predicts(sync: str) -> None:
    scene = Scene(make_sync(sync), 4, OUTLINE, steps_per_epoch=1000)
    machine = CalibratedMachine(calibration(), "mlp", engine="mpi", cluster=ETHERNET, workers=4, rows_per_worker=8)
    ends = virtual_events.step_ends(scene, machine, 40, seed=0)
    assert ends[-1] / 40 == pytest.approx(simulate_steps(scene, machine, 40).step_s, rel=0.01)
