"""`manyhands scale`, with real runs once and made-up ones otherwise."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faked import FakeMeasure

from manyhands.cli.main import main
from manyhands.record.run import RunDir
from manyhands.record.sweep import SweepDir, SweepRecord
from manyhands.report import files as report
from manyhands.scaling import checks, sweep

Command = Callable[[str], tuple[int, str, str]]
SCALE = "scale strong mlp --data mnist:train=200,test=50 --workers 1,2 --engines threads"


@pytest.fixture
def manyhands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run command lines in an empty folder; each call returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", *shlex.split(line)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasure:
    fake = FakeMeasure()
    monkeypatch.setattr(sweep, "measure", fake)
    monkeypatch.setattr(checks, "say_if_busy", lambda *_: None)
    return fake


TASK = """
import os
import manyhands
from torch import nn

class Fragile(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.layer, self.steps = nn.Linear(12, data.classes), 0

    def forward(self, x):
        self.steps += self.training
        if self.steps == 4 and os.environ.get("PMI_RANK") == "1":
            os.kill(os.getpid(), 9)
        return self.layer(x)

data = "synthetic:samples=97,features=12,classes=3,test=23,seed=5"
task = manyhands.Task(model=Fragile, data=data, batch_size=11)
"""
"""The second of several MPI ranks dies; nobody else does."""


def test_a_rank_that_is_killed_is_a_marked_row_and_the_others_are_there(manyhands: Command, tmp_path: Path) -> None:
    Path("fragile.py").write_text(TASK)
    line = "scale weak fragile.py:task --workers 1,2 --engines threads,mpi --steps 20 --repeats 1 --no-report --json"
    status, stdout, stderr = manyhands(line)
    assert status == 0
    record = SweepRecord.model_validate(json.loads(stdout))
    folder = SweepDir(tmp_path / "scales" / record.id)
    assert folder.read() == record
    assert record.status == "complete"

    serial, threads, mpi = record.rows
    assert (serial.failed, threads.failed) == ("", "")
    assert threads.speed_up is not None
    assert mpi.repeats == 0
    assert "killed by signal 9 (SIGKILL), perhaps for lack of memory" in mpi.failed
    assert "rank 1" in mpi.failed
    assert "killed by signal 9" in stderr, "people see it too"

    found = next(m for m in record.measures if m.cell == threads.cell.key)
    run = RunDir(folder.path / found.run)
    kept = run.read()
    assert kept is not None
    assert found.steps == kept.steps == 20
    assert found.steps_per_epoch == 5, "97 samples in batches of 2 × 11; a run of 20 steps need not know"
    assert found.step_ms == kept.steady.step_ms > 0
    assert found.compute_ms + found.serial_ms + found.comm_ms + found.wait_ms == pytest.approx(found.step_ms)
    assert found.bytes_per_step * 20 == pytest.approx(kept.bytes_sent)
    assert found.train_loss == kept.train_loss[-1]
    assert found.max_rss_bytes == max(rank.max_rss_bytes for rank in kept.ranks)
    assert run.trace.is_file()
    assert not run.model.exists(), "a sweep is not for keeping weights"


def test_tables_and_explanation_go_to_stdout_and_progress_to_stderr(manyhands: Command, fake: FakeMeasure) -> None:
    status, stdout, stderr = manyhands(f"{SCALE} --steps 30 --repeats 2 --no-report")
    assert status == 0
    for text in ("speed-up", "compute", "threads ×2", "Amdahl"):
        assert text in stdout
    lines = stderr.splitlines()
    assert lines[0].startswith("repeat 1/2 · serial, batch 64 … 6,400 samples/s")
    assert lines[5].startswith("repeat 2/2 · serial, batch 64 … ")
    assert "ETA 0:00" in lines[-2]
    assert lines[-1] == f"kept in {SweepDir.all_in(Path('scales'))[0].path}"


def test_the_report_is_drawn_and_named(manyhands: Command, fake: FakeMeasure, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: SweepDir) -> list[Path]:
        assert folder.read().status == "complete"
        return [folder.report, folder.path / "report.md"]

    monkeypatch.setattr(report, "write", write)
    status, stdout, stderr = manyhands(f"{SCALE} --steps 30 --repeats 1 --json")
    assert status == 0
    (folder,) = SweepDir.all_in(Path("scales"))
    assert f"report: {folder.report} (open it in a browser; beside it: report.md)" in stderr
    assert json.loads(stdout) == json.loads(folder.record.read_text())


def test_ctrl_c_says_how_to_go_on_and_that_works(manyhands: Command, fake: FakeMeasure) -> None:
    fake.interrupt_after = 4
    status, stdout, stderr = manyhands(f"{SCALE} --steps 30 --repeats 2 --out here")
    assert status == 130
    assert "speed-up" in stdout, "what there is is shown"
    (folder,) = SweepDir.all_in(Path("here"))
    hint = f"manyhands scale strong mlp --resume-from {folder.path.name} --out here"
    assert f"stopped; go on with: {hint}" in stderr
    assert not folder.report.exists()
    fake.interrupt_after = None
    assert manyhands(f"{hint.removeprefix('manyhands ')} --no-report")[0] == 0
    assert folder.read().status == "complete"
    assert len(fake.calls) == 6


def test_a_sweep_that_lies_elsewhere_goes_on_there(manyhands: Command, fake: FakeMeasure) -> None:
    fake.interrupt_after = 4
    manyhands(f"{SCALE} --steps 30 --repeats 3 --out 'over there'")
    (folder,) = SweepDir.all_in(Path("over there"))
    fake.interrupt_after = 6
    status, _, stderr = manyhands(f"scale strong mlp --resume-from '{folder.path}'")
    assert status == 130
    hint = f"manyhands scale strong mlp --resume-from {folder.path.name} --out 'over there'"
    assert f"stopped; go on with: {hint}" in stderr
    fake.interrupt_after = None
    status, _, stderr = manyhands(f"scale strong mlp --resume-from '{folder.path}'")
    assert status == 0
    assert f"kept in {folder.path}\n" in stderr
    assert f"report: {folder.report} " in stderr
    assert folder.report.is_file()
    assert not Path("scales").exists()


def test_ctrl_c_before_the_first_run_ends_is_no_failure(manyhands: Command, fake: FakeMeasure) -> None:
    fake.interrupt_after = 0
    status, stdout, stderr = manyhands(f"{SCALE} --budget 1m")
    assert (status, stdout) == (130, "")
    assert "go on with" in stderr


def test_where_every_run_failed_the_status_says_so(manyhands: Command, fake: FakeMeasure) -> None:
    fake.fails = lambda call: "the machine is [bold]tired[/bold]"
    status, stdout, stderr = manyhands(f"{SCALE} --steps 30 --repeats 3 --no-report")
    assert status == 1
    assert "the machine is [bold]tired[/bold]" in stdout
    assert "serial, batch 64 failed: the machine is [bold]tired[/bold]" in stderr


def test_where_all_that_is_compared_failed_the_status_says_so(manyhands: Command, fake: FakeMeasure) -> None:
    fake.fails = lambda call: "no core is free" if call.cell.startswith("cell") else ""
    status, stdout, _ = manyhands(f"{SCALE} --steps 30 --repeats 2 --no-report")
    assert status == 1
    assert "✗ threads ×2: 2 of 2 runs failed: no core is free" in stdout


def test_a_step_that_takes_no_time_has_no_rate(manyhands: Command, fake: FakeMeasure) -> None:
    fake.step_ms = 0.0
    status, _, stderr = manyhands(f"{SCALE} --steps 30 --repeats 1 --no-report")
    assert status == 1
    assert "serial, batch 64 … took no time that can be measured" in stderr


BAD = {
    "scale": "strong or weak? for example: manyhands scale strong mlp",
    "scale strong": "which task? for example: manyhands scale strong mlp",
    "scale mlp": "there is no kind of scaling 'mlp'; choose from: strong, weak",
    "scale strong mpl": "did you mean 'mlp'?",
    "scale strong mlp --workers 1,x": "workers must be a whole number, got 'x'",
    "scale strong mlp --engine mpi": "there is no option --engine; did you mean --engines?",
    "scale strong mlp --batch-size 4": "did you mean --batch-sizes?",
    "scale strong mlp --budget 5x": "a budget is written like 90s, 5m, 1h or 1m30s, got '5x'",
    "scale strong mlp --image-sizes 29": "must be one of 28, 56, 112, got 29",
    "scale weak no_such_file.py:task": "there is no task file 'no_such_file.py'",
    "scale weak mlp --resume": "there is no unfinished weak sweep of 'mlp' under 'scales'",
    "scale weak mlp --resume-from 17": "there are no sweeps under 'scales'",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_request_gets_one_sentence(manyhands: Command, fake: FakeMeasure, line: str) -> None:
    status, stdout, stderr = manyhands(line)
    assert (status, stdout) == (2, "")
    assert BAD[line] in stderr
    assert stderr.startswith("manyhands: ")
    assert stderr.count("\n") == 1
    assert not fake.calls
    assert not Path("scales").exists()


def test_help_tells_defaults_and_offers_nothing_twice(manyhands: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, stdout, _ = manyhands("scale --help")
    assert status == 0
    assert "Example: manyhands scale strong mlp" in stdout
    assert "[default: threads,mpi]" in stdout
    offered = re.findall(r"^│ (--[\w-]+)", stdout, re.MULTILINE)
    assert len(offered) == len(set(offered))
    assert {"--steps", "--epochs", "--workers", "--blas-threads", "--lr", "--data"} <= set(offered)
    assert not {"--engine", "--sync", "--batch-size", "--image-size", "--trace", "--eval-every"} & set(offered)
