"""A thread that fails ends a hybrid run, even where its process's first thread waits inside MPI."""

import json
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 30
"""Far more than such a run takes, so that one that hangs fails a test instead of ending the session."""


def test_a_failed_thread_ends_the_run_though_others_wait_for_messages(tmp_path: Path) -> None:
    script = Path(__file__).parent / "crossed.py"
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    told = json.loads(done.stdout)
    assert (told["rank"], told["step"]) == (1, 4)
    assert "ZeroDivisionError" in told["cause"]
