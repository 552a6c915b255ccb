"""Accuracy at n nodes: what `simulate --train` trains, and the time that it takes there."""

import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from made_up_machine import ETHERNET, calibration, constant, varying

from manyhands import RunRecord
from manyhands.cli.main import main
from manyhands.comm.sim import Instant
from manyhands.errors import UserError
from manyhands.record.calibration import Calibration
from manyhands.record.simulation import SimulationDir, SimulationRecord, TrainedRow
from manyhands.simulation.parts import TaskNetwork
from manyhands.simulation.simulate import SimulationPulse, simulate
from manyhands.virtual.scores import evaluation_steps
from manyhands.virtual.train import train_virtually

Predict = Callable[..., SimulationRecord]
SYNCS = "allreduce,local-sgd:period=2,async-server"


def fitting(known: Calibration) -> Calibration:
    """Make a calibration that is of the task's own network."""
    ((name, costs),) = known.tasks.items()
    made = TaskNetwork(name, "now")
    outline = made.outline(1)
    right = {"parameters": outline.num_weights, "weight_bytes": outline.num_bytes, "samples": made.samples}
    return known.model_copy(update={"tasks": {name: costs.model_copy(update=right)}})


@pytest.fixture
def predict(tiny: Callable[[str], str]) -> Predict:
    """Simulate a small task on a made-up machine, and train it: ten steps are an epoch."""

    def run(nodes: Any = (1, 3), train: dict[str, Any] | None = None, **options: Any) -> SimulationRecord:
        task = options.pop("task", tiny("mlp"))
        given = {
            "cluster": ETHERNET,
            "calibration": fitting(calibration(constant, task=task)),
            "method": "formula",
            "syncs": SYNCS,
        }
        more = {"batch_size": 10, "train": {"epochs": 2} if train is None else train}
        return simulate(task, nodes, **{**given, **more, **options})

    return run


def row(record: SimulationRecord, nodes: int, sync: str) -> TrainedRow:
    (found,) = [each for each in record.trained if (each.nodes, each.sync) == (nodes, sync)]
    return found


def test_every_row_is_trained_as_so_many_nodes_would(predict: Predict, tmp_path: Path, tiny: Any) -> None:
    found = predict(seed=3, out=tmp_path)
    assert [(each.sync, each.nodes) for each in found.trained] == [(each.sync, each.nodes) for each in found.rows]
    for each in found.trained:
        alone = train_virtually(
            tiny("mlp"), each.nodes, sync=each.sync, machine=Instant(), batch_size=10, epochs=2, seed=3
        )
        assert each.method == alone.method
        assert (each.steps, each.batch_size, each.epochs) == (20, 10, 2.0)
        assert each.test_loss == pytest.approx(alone.test_loss, rel=0.02 if each.staleness else 1e-6)
        assert (tmp_path / found.id / each.folder / "model.safetensors").is_file()
    assert row(found, 3, "async-server").staleness["max"] > 0
    assert SimulationDir(tmp_path / found.id).read() == found


def test_answers_that_are_not_those_of_one_worker_are_warned_of(predict: Predict, tiny: Any, tmp_path: Path) -> None:
    task, said = tiny("batchnorm"), list[str]()
    known = fitting(calibration(constant, task=task))
    options = {"calibration": known, "syncs": "allreduce,local-sgd", "batch_size": 30, "out": tmp_path}
    found = predict([3], task=task, train={"steps": 2, "batchnorm": "local"}, say=said.append, **options)
    (sentence,) = found.warnings
    assert sentence.startswith("several workers will not give the answer of one: ")
    assert said.count(sentence) == 1
    assert {each.sync: each.method for each in found.trained}["allreduce"] == "one-by-one"
    kept = json.loads((tmp_path / found.id / found.trained[0].folder / "virtual.json").read_text())
    assert kept["warnings"] == found.warnings


def test_its_time_is_that_of_the_predicted_steps(predict: Predict, tiny: Any) -> None:
    known = fitting(calibration(varying, task=tiny("mlp")))
    syncs = "allreduce,local-sgd:period=2,average-once"
    found = predict([3], calibration=known, syncs=syncs, method="events", train={"epochs": 20})
    for each, trained in zip(found.rows, found.trained, strict=True):
        assert trained.time_s.value == pytest.approx(20 * each.epoch_s.value, rel=0.05)
        assert trained.time_s.low / trained.time_s.value == pytest.approx(each.epoch_s.low / each.epoch_s.value)
        assert trained.points[-1].time_s == pytest.approx(trained.time_s.value)


def test_pulses_tell_how_long_a_training_goes_on(predict: Predict) -> None:
    seen: list[SimulationPulse] = []
    predict(observe=seen.append)
    left = [pulse.left_s for pulse in seen if pulse.trains]
    assert left
    assert all(each is not None and each >= 0 for each in left)
    assert left[-1] == 0


def test_asynchronous_workers_take_the_predicted_time_too() -> None:
    same: dict[str, Any] = {"cluster": ETHERNET, "calibration": calibration(constant)}
    found = simulate("mlp", [1, 3], syncs="async-server:servers=2", **same, train={"steps": 30})
    for each, trained in zip(found.rows, found.trained, strict=True):
        assert trained.time_s.value / 30 == pytest.approx(each.step_ms.value / 1e3, rel=0.04)


def test_the_time_to_an_accuracy_is_that_of_the_first_evaluation_that_shows_it(predict: Predict) -> None:
    found = predict(target_accuracy=0.5, syncs="local-sgd:period=2", train={"epochs": 8})
    for each, trained in zip(found.rows, found.trained, strict=True):
        first = next(point for point in trained.points if point.accuracy >= 0.5)
        assert trained.target_s is not None
        assert trained.target_s.value == pytest.approx(first.time_s)
        assert trained.target_cost is not None
        assert trained.target_cost.value == pytest.approx(each.nodes * 3.6 * first.time_s / 3600)
    assert all(each.target_s is None for each in predict(target_accuracy=1.0, train={"steps": 2}).trained)
    assert all(each.target_s is None for each in predict(train={"steps": 2}).trained)


def test_failures_of_nodes_make_it_longer(predict: Predict) -> None:
    shaky = ETHERNET.model_copy(update={"mtbf_hours": 0.01, "restart_s": 2.0})
    sound, failing = (predict(cluster=cluster, syncs="allreduce", train={"steps": 4}) for cluster in (ETHERNET, shaky))
    for a, b, predicted in zip(sound.trained, failing.trained, failing.rows, strict=True):
        factor = predicted.epoch_s.value / (10 * predicted.step_ms.value / 1e3)
        assert b.time_s.value == pytest.approx(factor * a.time_s.value)
        assert factor > 1


def test_exact_strategies_share_one_training(predict: Predict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from manyhands.virtual import train as virtual

    followed: list[Any] = []
    follow = virtual._follow

    def counted(*args: Any) -> Any:
        followed.append(args)
        return follow(*args)

    monkeypatch.setattr(virtual, "_follow", counted)
    found = predict(syncs="allreduce,parameter-server,sharded", out=tmp_path)
    assert len(followed) == 1
    assert len({each.weights_sha256 for each in found.trained}) == 1
    assert len({each.time_s.value for each in found.trained if each.nodes == 3}) == 3
    assert all((tmp_path / found.id / each.folder / "model.safetensors").is_file() for each in found.trained)


def test_a_simulated_run_can_be_replayed_for_real(
    predict: Predict, train: Callable[..., RunRecord], tmp_path: Path, tiny: Any
) -> None:
    found = predict([3], syncs="async-server", train={"steps": 14}, out=tmp_path)
    (simulated,) = found.trained
    replay = f"async-server:replay={tmp_path / found.id / simulated.folder}"
    real = train(tiny("mlp"), engine="threads", workers=3, sync=replay, batch_size=10, steps=14)
    assert real.weights_sha256 == simulated.weights_sha256


def test_ctrl_c_keeps_what_was_trained(predict: Predict, tmp_path: Path) -> None:
    def stop(pulse: SimulationPulse) -> None:
        if pulse.trains and pulse.sync == "async-server":
            raise KeyboardInterrupt

    found = predict(out=tmp_path, observe=stop)
    assert found.status == "interrupted"
    assert len(found.rows) == 6
    assert {each.sync for each in found.trained} == {"allreduce", "local-sgd:period=2"}
    assert SimulationDir(tmp_path / found.id).read() == found


def test_one_that_diverges_is_told_of(predict: Predict) -> None:
    found = predict([2], syncs="allreduce", train={"epochs": 3, "lr": 1e30})
    assert found.status == "complete"
    assert found.trained == []
    assert "loss became" in found.failed["allreduce on 2"]


@pytest.mark.parametrize(
    ("nodes", "options", "says"),
    [
        ([1], {"target_accuracy": 97.0}, "target-accuracy must be above 0 and at most 1, as 0.97, got 97"),
        ([1], {"target_accuracy": 0.0}, "got 0.0"),
        ([1025], {}, "--train takes at most 1,024 workers, got 1,025"),
        ([98], {}, "98 workers cannot share 97 training samples"),
        ([1], {"train": {"epochs": 0}}, "epochs must be at least 1"),
        ([1], {"train": {"lr_scaling": "cubic"}}, "there is no lr-scaling 'cubic'"),
        ([1], {"train": {"epoch": 2}}, "did you mean 'epochs'"),
    ],
)
def test_bad_requests(predict: Predict, nodes: list[int], options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        predict(nodes, **options, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("steps", "steps_per_epoch", "expected"),
    [
        (1, 100, [1]),
        (100, 100, [12, 24, 36, 48, 60, 72, 84, 96, 100]),
        (20, 1, [*range(1, 17), 18, 20]),
        (3, 4, [1, 2, 3]),
    ],
)
def test_evaluations_grow_apart(steps: int, steps_per_epoch: int, expected: list[int]) -> None:
    assert evaluation_steps(steps, steps_per_epoch) == expected


def test_a_long_run_is_evaluated_seldom_and_never_an_eighth_late() -> None:
    found = evaluation_steps(100_000, 1000)
    assert len(found) < 60
    assert all(b - a <= max(125, b / 8) for a, b in pairwise(found))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tiny: Any) -> Any:
    """Type `manyhands simulate` and some options for a small task; returns status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    Path("made-up.json").write_text(fitting(calibration(constant, task=tiny("mlp"))).model_dump_json())

    def run(options: str) -> tuple[int, str, str]:
        line = f"manyhands simulate {tiny('mlp')} --calibration made-up.json --batch-size 10 --method formula {options}"
        monkeypatch.setattr(sys, "argv", line.split())
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return run


def test_the_command_says_accuracy_time_and_how(command: Any) -> None:
    syncs = "allreduce,local-sgd:period=2,async-server"
    status, stdout, stderr = command(f"--nodes 1,3 --syncs {syncs} --train --epochs 3 --target-accuracy 0.5")
    assert status == 0, stderr
    table = stdout[stdout.index("trained: epochs 3, batch 10, learning rate 0.1") :]
    assert [line.split()[:2] for line in table.splitlines()[2:8]] == [
        [sync, nodes] for sync in syncs.split(",") for nodes in ("1", "3")
    ]
    assert re.search(r"^async-server +3 .* max \d+ one-by-one", table, re.MULTILINE)
    assert re.search(r"^50 % is reached first by \S+ on \d nodes?: ", table, re.MULTILINE)
    assert "100 % trained async-server on 3, accuracy" in stderr


def test_the_command_says_what_is_not_reached(command: Any) -> None:
    _, stdout, _ = command("--nodes 2 --train --epochs 1 --target-accuracy 1 --json")
    record = SimulationRecord.model_validate(json.loads(stdout))
    assert (record.target_accuracy, record.trained[0].target_s) == (1.0, None)
    _, stdout, _ = command("--nodes 2 --train --epochs 1 --target-accuracy 1")
    assert "not reached" in stdout
    assert "100 % is reached by none; the best is" in stdout


@pytest.mark.parametrize("option", ["--epochs 2", "--target-accuracy 0.9", "--lr-scaling linear"])
def test_options_of_a_training_need_one(command: Any, option: str) -> None:
    status, _, stderr = command(f"--nodes 2 {option}")
    assert (status, stderr) == (2, f"manyhands: {option.split()[0]} belongs to --train; add it\n")
