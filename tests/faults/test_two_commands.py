"""Two commands on one run: the second is refused, and takes over once the first is killed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import manyhands
from manyhands.cli.main import main
from manyhands.errors import UserError
from manyhands.launch.spawn import find_mpiexec
from manyhands.record.run import RunDir, read_steps

FAULTY = f"{Path(__file__).with_name('faulty.py')}:slow"
COMMAND = [sys.executable, "-m", "manyhands", "train", FAULTY]


def _command(line: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["manyhands", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def _steps(folder: Path) -> list[int]:
    return [int(step["step"]) for step in read_steps(RunDir(folder))]


def test_a_run_that_is_going_on_is_left_alone_until_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with subprocess.Popen([*COMMAND, "--checkpoint-every", "20"], stderr=subprocess.DEVNULL) as process:
        try:
            while not list(tmp_path.glob("runs/*/checkpoints/step-*")):
                assert process.poll() is None
                time.sleep(0.05)
            with pytest.raises(UserError, match=f"is in use by process {process.pid} on .* since 2"):
                manyhands.train(FAULTY, resume=True)
            assert _command("runs delete last --yes", monkeypatch) == 2
            assert _command("runs list --json", monkeypatch) == 0
            (listed,) = json.loads(capfd.readouterr().out)["unfinished"]
            assert listed["status"] == "running"
            assert str(process.pid) in listed["says"]
        finally:
            process.send_signal(signal.SIGKILL)
    assert _command("runs list --json", monkeypatch) == 0
    assert json.loads(capfd.readouterr().out)["unfinished"][0]["status"] == "killed"
    run = RunDir.find(tmp_path / "runs", "last")
    (run.path / ".record.json.1.ab.tmp").write_text("half")
    record = manyhands.train(FAULTY, resume=True, steps=max(_steps(run.path)) + 5)
    assert f"was left by process {process.pid} on" in capfd.readouterr().err
    assert _steps(run.path) == list(range(1, record.steps + 1)), "each step once"
    names = ["checkpoints", "model.safetensors", "record.json", "run.toml", "steps.jsonl"]
    assert sorted(path.name for path in run.path.iterdir()) == names


@pytest.mark.parametrize("start", [[*find_mpiexec(), "-n", "2"]], ids=["mpiexec"])
def test_what_rank_0_refuses_ends_all_that_were_started_from_outside(start: list[str], tmp_path: Path) -> None:
    record = manyhands.train(FAULTY, steps=4, checkpoint_every=2, out=tmp_path / "runs")
    command = [*start, *COMMAND, "--resume"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode != 0
    assert ended.stderr.count("manyhands: ") == 1
    assert f"run '{record.id}' is complete: it has made its 4 steps" in ended.stderr
    longer = [*command, "--steps", "6", "--json"]
    ended = subprocess.run(longer, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["resumed_from"] == 4
