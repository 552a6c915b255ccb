"""The commands a user types, on real runs."""

import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from made_up_machine import calibration

from manyhands.cli import doctor
from manyhands.cli.main import main
from manyhands.config import RunConfig
from manyhands.record.run import RunDir, RunRecord
from manyhands.report.runs import runs_page

SMALL = "--data mnist:train=200,test=50 --epochs 1"


@pytest.fixture
def manyhands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run command lines in an empty folder; each call returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", *line.split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return run


def test_json_is_exactly_one_object_on_stdout(manyhands) -> None:  # type: ignore[no-untyped-def]
    status, stdout, stderr = manyhands(f"train mlp {SMALL} --json")
    assert status == 0
    record = RunRecord.model_validate(json.loads(stdout))
    stored = json.loads(Path("runs", record.id, "record.json").read_text())
    assert stored == json.loads(stdout), "record.json and --json share one schema"
    assert "samples/s" in stderr, "the table is for people"


def test_without_json_stdout_is_empty(manyhands) -> None:  # type: ignore[no-untyped-def]
    assert manyhands(f"train mlp {SMALL}")[1] == ""


def test_a_stored_config_runs_again_to_the_same_bits(manyhands) -> None:  # type: ignore[no-untyped-def]
    first = json.loads(manyhands(f"train mlp {SMALL} --json --lr 0.05 --batch-size 32 --seed 3")[1])
    again = json.loads(manyhands(f"train --config runs/{first['id']}/run.toml --json")[1])
    assert again["config"] == first["config"]
    assert again["weights_sha256"] == first["weights_sha256"]
    other = json.loads(manyhands(f"train --config runs/{first['id']}/run.toml --seed 4 --json")[1])
    assert other["weights_sha256"] != first["weights_sha256"]


def test_own_model_example(manyhands) -> None:  # type: ignore[no-untyped-def]
    example = Path(__file__).parents[3] / "examples" / "own_model.py"
    assert len(example.read_text().splitlines()) < 30
    status, stdout, _ = manyhands(f"train {example}:task {SMALL} --engine threads --workers 2 --json")
    assert status == 0
    assert json.loads(stdout)["parameters"] == 8 * 25 + 8 + 16 + 8 * 144 * 10 + 10


@pytest.mark.parametrize(
    "options", ["--engine threads --workers 2", "--engine mpi --workers 3 --sync reduce-broadcast"]
)
def test_verify_says_equal(manyhands, options: str) -> None:  # type: ignore[no-untyped-def]
    status, stdout, _ = manyhands(f"verify mlp --data mnist:train=200,test=50 --steps 4 {options}")
    assert status == 0
    assert stdout.startswith("equal to round-off after each of 4 steps: largest difference ")
    assert stdout.count("\n") == 1


def test_verify_exact_says_the_same_bits(manyhands) -> None:  # type: ignore[no-untyped-def]
    line = "verify cnn --data mnist:train=64,test=10 --batch-size 32 --steps 2 --engine threads --workers 4 --exact"
    assert manyhands(line)[:2] == (0, "equal: the same bits after each of 2 steps\n")


UNEQUAL = """
import numpy as np
from torch import nn
from manyhands import Task

norm = Task(
    model=lambda d: nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)),
    batchnorm="local",
)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)
    def forward(self, x):
        return self.layer(x.flatten(1) * np.random.random())

random = Task(model=lambda d: Net())
"""


@pytest.mark.parametrize(("task", "cause"), [("norm", "layer '2' (BatchNorm1d)"), ("random", "a random layer")])
def test_verify_names_the_cause(manyhands, task: str, cause: str) -> None:  # type: ignore[no-untyped-def]
    Path("unequal.py").write_text(UNEQUAL)
    line = f"verify unequal.py:{task} --data mnist:train=200,test=50 --steps 3 --engine mpi --workers 2"
    status, stdout, _ = manyhands(line)
    assert status == 1
    assert stdout.startswith("not round-off: different from step 1 on, first in '")
    assert f"likely cause: {cause}" in stdout


TALKATIVE = """
from torch import nn
from manyhands import Dataset, Split, Task
import torch
print("hello from the task's file :smile:")
def bad():
    x, y = torch.rand(20, 4), torch.arange(20) % 3
    return Dataset("mine", Split(x, y), Split(x, y), classes=2)
def one_row():
    x, y = torch.rand(9, 4), torch.arange(9) % 3
    return Dataset("mine", Split(x, y), Split(x, y), classes=3)
talks = Task(model=lambda d: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
labels = Task(model=lambda d: nn.Linear(4, 2), data=bad)
narrow = Task(model=lambda d: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), data=one_row)
wrong = Task(model=lambda d: nn.Sequential(nn.Linear(5, 3)), data=one_row)
"""


def test_what_a_task_prints_does_not_mix_with_the_result(manyhands) -> None:  # type: ignore[no-untyped-def]
    Path("talkative.py").write_text(TALKATIVE)
    status, stdout, stderr = manyhands(f"train talkative.py:talks {SMALL} --json")
    assert status == 0
    assert json.loads(stdout)["status"] == "complete"
    assert "hello from the task's file :smile:" in stderr
    line = "verify talkative.py:talks --data mnist:train=200,test=50 --steps 2 --engine threads --workers 2 --json"
    status, stdout, stderr = manyhands(line)
    assert status == 0
    assert json.loads(stdout)["equal"]
    assert "hello from the task's file :smile:" in stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("talkative.py:labels", "row 2 of the training labels of mine is 2, outside 0 to 1"),
        ("talkative.py:narrow --batch-size 4", "layer '1' (BatchNorm1d) cannot normalise a single row"),
        ("talkative.py:wrong", "does not take samples of shape (4,)"),
    ],
)
def test_a_task_that_cannot_work_is_refused_before_it_starts(manyhands, line: str, says: str) -> None:  # type: ignore[no-untyped-def]
    Path("talkative.py").write_text(TALKATIVE)
    status, _, stderr = manyhands(f"train {line}")
    assert status == 2
    assert says in stderr
    assert not Path("runs").exists()


def test_runs_are_listed_shown_compared_and_deleted(manyhands) -> None:  # type: ignore[no-untyped-def]
    assert "no runs under 'runs' yet" in manyhands("runs")[1]
    first, second = (json.loads(manyhands(f"train mlp {SMALL} --json")[1])["id"] for _ in range(2))
    listing = manyhands("runs list --json")[1]
    assert [r["id"] for r in json.loads(listing)["runs"]] == [first, second]
    heads, *lines = manyhands("runs")[1].splitlines()
    assert heads.split()[:4] == ["id", "date", "task", "status"]
    assert [line.split()[0] for line in lines] == [first, second], "ids stand on one line"
    assert all(line.split()[3:5] == ["mlp", "complete"] for line in lines)
    assert json.loads(manyhands(f"runs show {first} --json")[1])["id"] == first
    shown = manyhands("runs show last")[1]
    assert json.loads(manyhands("runs show last --json")[1])["weights_sha256"] in shown
    for group in ("result", "speed", "exchange", "settings", "machine"):
        assert f"\n{group}\n" in shown
    assert not re.search(r"[{}\[\]]|\d\.\d{8}", shown), "no dictionaries, no sixteen digits"
    assert "the same, bit for bit" in manyhands(f"runs compare {first} {second}")[1]
    assert manyhands(f"runs delete {first} --yes")[0] == 0
    assert [p.name for p in Path("runs").iterdir()] == [second]


def test_doctor_finds_what_the_tests_need(manyhands) -> None:  # type: ignore[no-untyped-def]
    status, stdout, _ = manyhands("doctor --json")
    findings = {f["what"]: f for f in json.loads(stdout)["findings"]}
    assert status == 0
    assert findings["mpi"]["ok"]
    assert "two ranks met" in findings["mpi"]["found"]
    assert findings["mnist"]["ok"]
    assert findings["manyhands"]["found"]
    assert "free of" in findings["disk"]["found"]
    assert "calibration" in findings
    assert "'manyhands[images]'" in findings["pillow"]["mend"]
    assert "'manyhands[arrow]'" in findings["pyarrow"]["mend"]


def test_doctor_says_how_old_the_calibration_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calibration.json"
    monkeypatch.setattr(doctor, "calibration_path", lambda: path)
    assert doctor._calibration().mend == "manyhands calibrate"
    made = datetime.now() - timedelta(days=3, hours=1)
    known = calibration().model_copy(update={"made": f"{made:%Y-%m-%d %H:%M:%S}"})
    path.write_text(known.model_dump_json())
    assert ", 3 days ago: " in doctor._calibration().detail
    path.write_text("{}")
    assert not doctor._calibration().ok


def test_engine_sim_claims_no_times_since_its_clocks_stand_still(manyhands) -> None:  # type: ignore[no-untyped-def]
    _, stdout, stderr = manyhands(f"train mlp {SMALL} --engine sim --workers 8 --json")
    record = RunRecord.model_validate(json.loads(stdout))
    lines = stderr.splitlines()
    heads = next(i for i, line in enumerate(lines) if line.split()[1:2] == ["samples/s"])
    cells = lines[heads + 1]
    assert cells.split()[2] == "–"
    assert cells.count("–") == 5, "nor shares of no time"
    assert "0.0 %" not in stderr
    assert "shared" not in stderr, "virtual ranks take turns"
    assert "ETA" not in stderr.replace("ETA –", "")
    page = runs_page([(RunDir(Path("runs", record.id)), record)])
    assert "0 samples/s" not in page.headline
    assert page.tiles[0].value == "–"
    assert not next(section for section in page.sections if section.id == "time").figures, "of no time"
    assert "nan" not in (page.markdown + page.csv).lower()
    assert "| sim ×8 | – | – | – | – | – | – |" in page.markdown


def test_every_setting_is_an_option_with_help(manyhands) -> None:  # type: ignore[no-untyped-def]
    stdout = " ".join(manyhands("train --help")[1].split())
    for name, field in RunConfig.model_fields.items():
        assert field.description, name
        if name not in ("task", "chosen_blas_threads"):
            assert f"--{name.replace('_', '-')}" in stdout
    assert "Example: manyhands train" in stdout


def test_ctrl_c_is_answered(manyhands, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def stop(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("manyhands.advice.advise.advise", stop)
    assert manyhands("advise mlp --target-accuracy 0.9") == (130, "", "manyhands: stopped\n")
