"""One run in a process of its own: why it failed, and that nothing of it is left. Its figures: test_scale_command."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.measurement import measure as measuring
from manyhands.measurement.measure import measure


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let `measure` run some Python instead of training."""
    return lambda code: monkeypatch.setattr(measuring, "_command", lambda *args: [sys.executable, "-c", code])


FAILURES = {
    "print('manyhands: first', file=sys.stderr); print('manyhands: the loss became nan\\nmore', file=sys.stderr); "
    "sys.exit(1)": "the loss became nan",
    "os.kill(os.getpid(), 9)": "killed by signal 9, perhaps for lack of memory",
    "os.kill(os.getpid(), 11)": "killed by signal 11",
    "print('manyhands: rank 1 on here failed at step 3: killed by signal 9 (SIGKILL)', file=sys.stderr); sys.exit(1)": (
        "rank 1 on here failed at step 3: killed by signal 9 (SIGKILL), perhaps for lack of memory"
    ),
    "raise MemoryError": "ended with status 1: MemoryError",
    "sys.exit(3)": "ended with status 3",
    "print('{\"id\": 3')": "ended without a record that can be read",
    "time.sleep(60)": "took longer than 1 s and was ended",
}


@pytest.mark.parametrize("code", FAILURES)
def test_what_went_wrong_is_one_sentence(child: Callable[[str], None], tmp_path: Path, code: str) -> None:
    child(f"import os, sys, time; {code}")
    found = measure("mlp", {}, tmp_path, timeout_s=1, cell="a", repeat=2)
    assert (found.failed, found.cell, found.repeat) == (FAILURES[code], "a", 2)


def test_a_python_that_is_gone_is_a_failed_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert measure("mlp", {}, tmp_path, timeout_s=1).failed == "could not be started: No such file or directory"


STUBBORN = """
import os, signal, subprocess, sys, time
if len(sys.argv) < 2:
    subprocess.Popen([sys.executable, __file__, "grandchild"], start_new_session=True)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[-1] + ".pid", "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_ctrl_c_ends_the_run_and_all_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture of all tests fails this one if a process is left, even one that does not listen to signals."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring, "STOP_GRACE_S", 0.1)
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    monkeypatch.setattr(measuring, "_command", lambda *args: [sys.executable, str(script)])

    def press() -> None:
        while len(list(tmp_path.glob("*.pid"))) < 2:
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    finger = threading.Thread(target=press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes of pytest-xdist ignore Ctrl-C
    try:
        finger.start()
        with pytest.raises(KeyboardInterrupt):
            measure("mlp", {}, tmp_path, timeout_s=60)
        finger.join()
    finally:
        signal.signal(signal.SIGINT, before)
