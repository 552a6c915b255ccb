"""Processes that read samples ahead leave with their rank, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

SLOW_DATA = """
import time
import torch
from torch.utils.data import Dataset
import manyhands

class Slow(Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return self.rows
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(5), torch.randn(1)

task = manyhands.Task(
    model=torch.nn.Linear(5, 1), data=lambda: (Slow(100_000), Slow(5)), loss="mse", batch_size=4
)
"""

WAIT_S = 60.0


def eventually(condition: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("engine", [["serial"], ["mpi", "--workers", "2"]])
def test_no_process_is_left(tmp_path: Path, engine: list[str], number: signal.Signals) -> None:
    (tmp_path / "slow.py").write_text(SLOW_DATA)
    command = [sys.executable, "-m", "manyhands", "train", f"{tmp_path}/slow.py:task", "--engine", *engine]
    options = ["--data-workers", "2", "--checkpoint-every", "100000", "--out", str(tmp_path / "runs")]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert eventually(lambda: any(p.stat().st_size for p in (tmp_path / "runs").glob("*/steps.jsonl")))
        started = psutil.Process(run.pid).children(recursive=True)
        assert len(started) >= 2 * (1 if engine == ["serial"] else 2)
        if number == signal.SIGKILL:
            os.kill(run.pid, number)
        else:
            os.killpg(run.pid, number)
        _, said = run.communicate(timeout=WAIT_S)
    assert eventually(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in started)), started
    if number != signal.SIGKILL:
        assert run.returncode == 130, said
        assert "data worker" not in said
        assert list((tmp_path / "runs").glob("*/checkpoints/step-*.safetensors")), "stopped between two steps"
