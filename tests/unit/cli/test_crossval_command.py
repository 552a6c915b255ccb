"""`manyhands crossval` as a user types it."""

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.cli.crossval import sentence
from manyhands.cli.main import main
from manyhands.crossval.record import CrossvalRecord, CrossvalTable
from manyhands.crossval.run import tabulate
from manyhands.request import resolve

TINY = f"{Path(__file__).parents[2] / 'conformance' / 'tiny.py'}:mlp"

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def crossval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `manyhands crossval` in an empty folder; each call returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "manyhands.machine.facts.cores", lambda: 1
    )  # threads of tests that run at once hinder each other

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", "crossval", *line.split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return run


def test_json_is_exactly_the_record_that_is_kept(crossval: Run) -> None:
    status, stdout, stderr = crossval(f"{TINY} --folds 4 --engine threads --workers 2 --json")
    assert status == 0
    record = CrossvalRecord.model_validate_json(stdout)
    assert json.loads(Path("runs", record.id, "crossval.json").read_text()) == json.loads(stdout)
    assert record.bit_equal
    assert len(record.folds) == 4
    assert "to the last bit" in stderr
    assert "4.0 of 4 folds" in stderr
    assert "ETA" in stderr


def test_the_answer_is_one_line_on_stdout(crossval: Run) -> None:
    status, stdout, stderr = crossval(f"{TINY} --folds 3")
    assert status == 0
    assert stdout.count("\n") == 1
    assert stdout.startswith("accuracy ")
    assert "(mean of 3 folds, 95 % interval)" in stdout
    assert "speed-up" not in stdout, "one worker has nothing to be compared with"
    assert "kept in runs/" in stderr


def test_the_sentence_has_the_papers_measure(crossval: Run) -> None:
    record = CrossvalRecord.model_validate_json(crossval(f"{TINY} --folds 2 --split-data --nodes 2 --json")[1])
    assert record.improvement_pct is not None
    says = sentence(record.model_copy(update={"speed_up": 1.25, "improvement_pct": 20.0}))
    assert "speed-up 1.25×, performance improvement 20.0 %" in says
    slow = sentence(record.model_copy(update={"speed_up": 0.33, "improvement_pct": -203.0}))
    assert "speed-up 0.33×, slower than one worker" in slow
    assert "203" not in slow, "nothing was improved"
    assert "2 folds on each of 2 nodes" in says
    assert "hold-out" in says


def test_the_table_goes_over_nodes_and_folds(crossval: Run) -> None:
    options = "--data synthetic:samples=900,features=12,classes=3,test=60 --batch-size 100"
    status, stdout, stderr = crossval(f"{TINY} --table {options} --steps 2")
    assert status == 0
    rows = [line.split()[:3] for line in stdout.splitlines()[1:]]
    assert rows == [[str(n), str(k), "1"] for n in (1, 2, 4, 8) for k in (2, 5, 10)]
    assert "…" not in stdout, "it fits"
    assert "trained them in turn" in stderr
    table = CrossvalTable.model_validate_json(next(Path("runs").glob("*/table.json")).read_text())
    assert len(table.cells) == 12


def test_settings_come_from_a_file_too(crossval: Run) -> None:
    line = "--folds 3 --split-data --nodes 2 --no-stacked --no-baseline --lr 0.3 --seed 4 --json"
    first = json.loads(crossval(f"{TINY} {line}")[1])
    kept = Path("runs", first["id"], "crossval.toml")
    assert tomllib.loads(kept.read_text())["blas_threads"] == 0, "as many threads as the next machine has cores for"
    again = json.loads(crossval(f"--config {kept} --json")[1])
    for key in ("num_folds", "nodes", "hold_out", "baseline_s", "config"):
        assert again[key] == first[key]
    assert [f["weights_sha256"] for f in again["folds"]] == [f["weights_sha256"] for f in first["folds"]]
    other = json.loads(crossval(f"--config {kept} --folds 2 --stacked --json")[1])
    assert [f["stacked"] for f in other["folds"]] == [True] * 4, "options win"


def test_a_table_runs_again_from_its_file(crossval: Run, tmp_path: Path) -> None:
    table = tabulate(TINY, nodes=(1, 2), folds=(2,), out=tmp_path / "runs")
    again = json.loads(crossval(f"--config runs/{table.id}/crossval.toml --json")[1])
    assert (again["nodes"], again["folds"]) == ([1, 2], [2])
    assert [cell["accuracy"] for cell in again["cells"]] == [cell.accuracy for cell in table.cells]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fold = 5", "there is no setting 'fold'; did you mean 'folds'?"),
        ('out = "elsewhere"', "there is no setting 'out'"),
        ('folds = "five"', "folds must be a valid integer, got 'five'"),
        ("folds = [2, 5]", "folds must be one number without --table, got [2, 5]"),
        ("table = true\nnodes = [0]", "nodes must be at least 1, got 0"),
        ("[folds]\nnumber = 5", "folds must be a valid integer, got {'number': 5}"),
    ],
)
def test_a_bad_file_is_one_sentence(crossval: Run, text: str, says: str) -> None:
    Path("own.toml").write_text(text)
    status, _, stderr = crossval(f"{TINY} --config own.toml")
    assert status == 2
    assert says in stderr
    assert "Traceback" not in stderr


def test_the_file_of_a_run_serves_too(crossval: Run) -> None:
    task = resolve(TINY, {"epochs": 1})
    Path("run.toml").write_text(task.to_toml())
    assert crossval("--config run.toml --folds 2")[0] == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "which task? for example: manyhands crossval mlp"),
        (f"{TINY} --folds 1", "folds must be at least 2, got 1"),
        (f"{TINY} --folds 90", "training samples, too few for 90 folds"),
        (f"{TINY} --folds ten", "folds"),
        (f"{TINY} --nodes 3", "nodes 3 needs --split-data"),
        (f"{TINY} --table --nodes 3", "--table chooses the nodes itself"),
        (f"{TINY} --table --folds 3", "--table chooses the folds itself; leave --folds out"),
        (f"{TINY} --table --split-data", "leave --split-data out"),
        (f"{TINY} --table --no-baseline", "leave --baseline out"),
        (f"{TINY} --eval-every 2", "leave --eval-every out"),
        (f"{TINY} --sync local-sgd --folds 4", "one worker trains each of the 4 folds; leave --sync out"),
        (f"{TINY} --engine hybrid --workers 2", "engine hybrid cannot form the groups that crossval needs"),
        (f"{TINY} --exact --stacked", "give --exact or --stacked, not both"),
        ("mpl", "did you mean 'mlp'?"),
        (f"{TINY} --fold 3", "did you mean --folds?"),
    ],
)
def test_a_bad_request_is_one_sentence(crossval: Run, line: str, says: str) -> None:
    status, stdout, stderr = crossval(line)
    assert status == 2
    assert stdout == ""
    assert says in stderr
    assert "Traceback" not in stderr
    assert not Path("runs").exists()


def test_help_has_an_example(crossval: Run) -> None:
    stdout = " ".join(crossval("--help")[1].replace("│", " ").split())
    assert "Example: manyhands crossval mlp --folds 10 --engine mpi --workers 4" in stdout
    for option in ("--folds", "--split-data", "--nodes", "--table", "--stacked", "--baseline", "--batch-size"):
        assert option in stdout
    for default in ("10", "where quicker", "with several workers"):
        assert f"[default: {default}]" in stdout
