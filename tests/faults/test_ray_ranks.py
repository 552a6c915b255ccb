"""Nobody hangs on Ray either: Ctrl-C leaves a checkpoint, and nothing outlives the command.

Ranks that raise or are killed are tested in `unit/launch/test_ray.py`, with a Ray that is started once.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import manyhands
from manyhands.launch.mailbox import LiveFolder, read_status
from manyhands.record.run import RunDir
from manyhands.training.checkpoint import newest_sound

pytest.importorskip("ray")

pytestmark = pytest.mark.timeout(240)

FAULTY = Path(__file__).with_name("faulty.py")
COMMAND = [sys.executable, "-m", "manyhands", "train"]
RANKS = 2
PATIENCE_S = 60
"""For what takes a few seconds on an idle machine: Ray's own processes are many."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `manyhands train` in an empty folder, and see it to its end."""
    begun: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(subprocess.Popen([*COMMAND, *options], cwd=tmp_path, text=True, start_new_session=True, **pipes))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def start_slow(start: Start, folder: Path, *options: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a run that goes on for long; return it and its ranks once it has done some steps."""
    process = start(f"{FAULTY}:slow", "--engine", "ray", "--workers", str(RANKS), *options)
    while not any(p.stat().st_size > 0 for p in folder.glob("runs/*/steps.jsonl")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    (run,) = folder.glob("runs/*")
    statuses = [read_status(LiveFolder(RunDir(run)), rank) for rank in range(RANKS)]
    return process, [psutil.Process(status[0]) for status in statuses if status]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=PATIENCE_S)
    for process in left:
        process.kill()
    assert not left, f"left behind: {left}"


def test_ctrl_c_ends_every_rank_and_leaves_a_checkpoint(start: Start, tmp_path: Path) -> None:
    process, ranks = start_slow(start, tmp_path, "--checkpoint-every", "100000")
    everything = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert "go on with: manyhands train" in stderr
    assert_gone([*everything, *ranks])
    (run,) = tmp_path.glob("runs/*")
    path, damaged = newest_sound(run / "checkpoints")
    assert path is not None
    assert not damaged
    done = int(re.search(r"step-(\d+)", path.name)[1])  # type: ignore[index]
    options = {"resume": True, "engine": "threads", "steps": done + 3, "out": tmp_path / "runs"}
    assert manyhands.train(f"{FAULTY}:slow", **options).steps == done + 3


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_the_whole_group_leaves_a_checkpoint(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process, ranks = start_slow(start, tmp_path, "--checkpoint-every", "100000")
    everything = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert_gone([*everything, *ranks])
    assert len(list(tmp_path.glob("runs/*/checkpoints/step-*"))) == 1


def test_killing_the_command_itself_leaves_nothing(start: Start, tmp_path: Path) -> None:
    process, ranks = start_slow(start, tmp_path)
    everything = psutil.Process(process.pid).children(recursive=True)
    living = [p for p in everything if p.status() != psutil.STATUS_ZOMBIE]
    (guard,) = [p for p in living if any(word.endswith("on_ray/guard.py") for word in p.cmdline())]
    folder = Path(guard.cmdline()[-1])
    assert folder.is_dir()
    process.kill()
    assert_gone([*everything, *ranks])
    assert not folder.exists()
