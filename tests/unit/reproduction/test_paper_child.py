"""What a run's own record becomes: figures by name, no weights left behind, and a sentence where it failed."""

import json
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from manyhands.config import RunConfig
from manyhands.crossval.record import CrossvalRecord, HoldOut
from manyhands.measurement import measure as measuring
from manyhands.record.papers import ReproductionDir
from manyhands.record.profile import FunctionRow, ProfileRecord, RankProfile
from manyhands.record.sweep import Measure
from manyhands.reproduction import child
from manyhands.reproduction.base import Setting

FOLDS = Setting(command="crossval", task="dnn", options={"folds": 10, "baseline": False, "split_data": True}, work_s=1)
PROFILE = Setting(command="profile", task="softmax", options={"steps": 40}, work_s=1)
TRAIN = Setting(task="mlp", options={"engine": "mpi", "workers": 2}, work_s=1)


@pytest.fixture
def folder(tmp_path: Path) -> ReproductionDir:
    return ReproductionDir(tmp_path)


def answer(monkeypatch: pytest.MonkeyPatch, status: int, stdout: str = "", stderr: str = "") -> list[list[str]]:
    """Let commands answer so; return those that are run."""
    commands: list[list[str]] = []

    def run(command: list[str], timeout_s: float) -> tuple[int, str, str]:
        commands.append(command)
        return status, stdout, stderr

    monkeypatch.setattr(measuring, "run_command", run)
    return commands


def crossval_record() -> CrossvalRecord:
    held = HoldOut(accuracy=0.9, loss=0.3, train_accuracy=0.95, train_loss=0.2, weights_sha256="")
    config = RunConfig(task="dnn")
    return CrossvalRecord(
        id="some-run", task="dnn", engine="mpi", sync="allreduce", workers=2, num_folds=10, nodes=4, folds=[],
        accuracy=0.8, interval=None, loss=0.4, hold_out=held, total_s=12.0, wall_s=15.0, longest_node_s=5.0,
        hardware={}, versions={}, config=config,
    )  # fmt: skip


def test_a_cross_validation_tells_its_scores_and_leaves_no_weights(
    folder: ReproductionDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder.runs / "some-run"
    (run / "node-0-fold-00").mkdir(parents=True)
    for name in ("crossval.json", "model.safetensors", "folds.npy", "node-0-fold-00/model.safetensors"):
        (run / name).write_text("")
    commands = answer(monkeypatch, 0, crossval_record().model_dump_json())
    taken = child.take(FOLDS, folder, 2)
    assert (taken.setting, taken.repeat, taken.failed, taken.run) == (FOLDS.key, 2, "", "runs/some-run")
    assert taken.values["train_accuracy"] == 0.95
    assert taken.values["hold_out_accuracy"] == 0.9
    assert (taken.values["total_s"], taken.values["longest_node_s"]) == (12.0, 5.0)
    assert [path.name for path in run.iterdir()] == ["crossval.json"]
    assert {"crossval", "dnn", "--folds=10", "--no-baseline", "--split-data", "--json"} <= set(commands[0])


def test_a_profile_tells_shares_of_the_loop_and_calls_of_a_step(
    folder: ReproductionDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(name: str, self_s: float) -> FunctionRow:
        return FunctionRow(name=name, file="", line=1, share_pct=1.0, self_s=self_s, total_s=self_s, calls=80)

    functions = [function("a", 1.0), function("b", 0.4), function("b", 0.2)]
    rank = RankProfile.model_construct(steps=40, loop_s=2.0, read_s=7.0, functions=functions)
    record = ProfileRecord.model_construct(id="some-run", ranks=[rank])
    monkeypatch.setattr(ProfileRecord, "model_validate_json", lambda text: record)
    (folder.runs / "some-run").mkdir(parents=True)
    answer(monkeypatch, 0)
    values = child.take(PROFILE, folder, 0).values
    assert values == {"share a": 50.0, "calls a": 2.0, "share b": pytest.approx(30.0), "calls b": 4.0}


def test_a_training_tells_its_measure_and_the_time_of_an_epoch(
    folder: ReproductionDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Measure(cell="", repeat=0, run="runs/gone", steps=20, steps_per_epoch=50, step_ms=4.0, test_accuracy=0.97)
    monkeypatch.setattr(child, "measure", lambda *args, **options: found)
    taken = child.take(TRAIN, folder, 1)
    assert (taken.values["step_s"], taken.values["epoch_s"]) == pytest.approx((0.004, 0.2))
    assert taken.values["test_accuracy"] == 0.97
    assert "parameters" not in taken.values, "its record is gone"


@pytest.mark.parametrize("setting", [FOLDS, PROFILE], ids=lambda s: s.command)
def test_a_command_that_fails_says_why(
    setting: Setting, folder: ReproductionDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, 1, stderr="lots of talk\nmanyhands: rank 1 on host a failed at step 3: no memory\n")
    assert child.take(setting, folder, 0).failed == "rank 1 on host a failed at step 3: no memory"
    answer(monkeypatch, 0, stdout=json.dumps({"id": "x"}))
    assert child.take(setting, folder, 0).failed == "ended without a record that can be read"

    def slow(command: list[str], timeout_s: float) -> tuple[int, str, str]:
        raise TimeoutExpired(command, timeout_s)

    monkeypatch.setattr(measuring, "run_command", slow)
    assert "took longer than 300 s" in child.take(setting, folder, 0).failed


def test_a_training_that_fails_says_why(folder: ReproductionDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "measure", lambda *a, **o: Measure(cell="", repeat=0, failed="killed by signal 9"))
    taken = child.take(TRAIN, folder, 0)
    assert (taken.setting, taken.failed, taken.values) == (TRAIN.key, "killed by signal 9", {})
