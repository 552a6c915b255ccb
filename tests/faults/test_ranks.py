"""Nobody hangs: a rank that raises or is killed ends the run, is named, and leaves no process behind.

Starting processes is most of the time, so every fault is shown by the engines that meet it in a way of their own:
mpi and hybrid share mpiexec, mpi and torch share the supervisor. More is in `unit/launch`.
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
from manyhands.cli.main import main
from manyhands.launch.spawn import find_mpiexec
from manyhands.training.checkpoint import checkpoints, newest_sound

FAULTY = Path(__file__).with_name("faulty.py")
COMMAND = [sys.executable, "-m", "manyhands", "train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]

Start = Callable[..., subprocess.Popen[str]]
Run = Callable[..., "Ended"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command in an empty folder; afterwards fail if any process of its is left."""
    begun: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(subprocess.Popen(command, cwd=tmp_path, text=True, start_new_session=True, **pipes))
        return begun[-1]

    yield start
    left = ranks_of(tmp_path)
    for process in (*left, *begun):
        process.kill()
    for process in begun:
        process.communicate()
    assert not left, f"left behind: {left}"


def ranks_of(folder: Path) -> list[psutil.Process]:
    """Return the rank processes that work in this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and "manyhands.launch.rank" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Poll until the condition holds; a process that ends before that fails the test."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def has_steps(folder: Path) -> bool:
    return any(p.stat().st_size > 0 for p in folder.glob("runs/*/steps.jsonl"))


Ended = tuple[int | str | None, str]
"""A command's exit status, and what it wrote on stderr."""


@pytest.fixture
def run(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `manyhands train` to its end, in this process; afterwards fail if any process of its is left."""

    def run(*options: str) -> Ended:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["manyhands", "train", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capfd.readouterr().err

    return run


@pytest.mark.parametrize("engine", ["serial", "threads --workers 2", "mpi --workers 2"])
def test_a_rank_that_raises_is_named_with_its_traceback(run: Run, engine: str) -> None:
    status, stderr = run(f"{FAULTY}:raises", "--engine", *engine.split())
    assert status == 1
    assert re.search(r"manyhands: rank \d on \S+ failed at step \d+: RuntimeError", stderr)
    assert "the model has had enough" in stderr
    assert f'File "{FAULTY}"' in stderr, "the user's own line is in the traceback"


def test_a_thread_that_raises_ends_the_command_though_another_is_stuck(start: Start) -> None:
    process = start(*COMMAND, f"{FAULTY}:sticks", "--engine", "threads", "--workers", "2")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"manyhands: rank 1 on \S+ failed at step \d+: RuntimeError", stderr)
    assert f'File "{FAULTY}"' in stderr


@pytest.mark.parametrize("engine", ["serial", "mpi --workers 2"])
def test_a_loss_that_is_not_finite_stops_the_run(run: Run, engine: str) -> None:
    status, stderr = run("mlp", "--data", "mnist:train=1000,test=50", "--lr", "1e6", "--engine", *engine.split())
    assert status == 1
    assert re.search(r"the loss became (nan|inf) at step \d+", stderr)
    assert "Traceback" not in stderr


@pytest.mark.parametrize("engine", ["hybrid --workers 2 --threads 2", "torch --workers 2"])
def test_a_killed_rank_ends_the_run(start: Start, tmp_path: Path, engine: str) -> None:
    process = start(*COMMAND, f"{FAULTY}:slow", "--engine", *engine.split())
    wait_for(lambda: has_steps(tmp_path), process)
    victim = ranks_of(tmp_path)[-1]
    victim.send_signal(signal.SIGKILL)
    _, stderr = process.communicate(timeout=5)  # the promise: within five seconds
    assert process.returncode == 1
    assert re.search(r"rank \d on \S+ failed at step \d+: killed by signal 9 \(SIGKILL\)", stderr)


@pytest.mark.parametrize(("task", "engine"), [("hangs", "mpi"), ("slow", "torch")])
def test_killing_the_command_itself_leaves_no_rank(start: Start, tmp_path: Path, task: str, engine: str) -> None:
    process = start(*COMMAND, f"{FAULTY}:{task}", "--engine", engine, "--workers", "2")
    wait_for(lambda: has_steps(tmp_path), process)
    process.kill()
    deadline = time.monotonic() + 20
    while ranks_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ranks_of(tmp_path)


@pytest.mark.parametrize(
    ("engine", "number"), [("threads --workers 2", signal.SIGHUP), ("mpi --workers 2", signal.SIGINT)]
)
def test_a_stop_ends_every_rank_and_leaves_a_checkpoint(
    start: Start, tmp_path: Path, engine: str, number: signal.Signals
) -> None:
    out = ["--engine", *engine.split(), "--checkpoint-every", "100000"]
    process = start(*COMMAND, f"{FAULTY}:slow", *out)
    wait_for(lambda: has_steps(tmp_path), process)
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "go on with: manyhands train" in stderr
    (folder,) = tmp_path.glob("runs/*")
    path, damaged = newest_sound(folder / "checkpoints")
    assert path is not None
    assert not damaged
    done = int(re.search(r"step-(\d+)", path.name)[1])  # type: ignore[index]
    options = {"resume": True, "engine": "threads", "steps": done + 3, "out": tmp_path / "runs"}
    assert manyhands.train(f"{FAULTY}:slow", **options).steps == done + 3


def test_a_second_ctrl_c_ends_at_once(start: Start, tmp_path: Path) -> None:
    process = start(*COMMAND, f"{FAULTY}:slow", "--engine", "torch", "--workers", "2")
    wait_for(lambda: has_steps(tmp_path), process)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manyhands.train("mlp", data="mnist:train=640,test=50", epochs=1, checkpoint_every=3, out=tmp_path)
    (folder,) = tmp_path.iterdir()
    newest = checkpoints(folder / "checkpoints")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    (folder / "record.json").unlink()
    record = manyhands.train("mlp", resume=True, out=tmp_path)
    assert f"'{newest.name}' is damaged" in capsys.readouterr().err
    assert record.resumed_from == 6


def test_worlds_of_size_one_are_refused(run: Run, tmp_path: Path) -> None:
    """An mpiexec of another MPI starts n ranks that each believe to be alone."""
    strange = tmp_path / "strange-mpiexec"
    strange.write_text('#!/bin/sh\nn=$2; shift 2\nfor i in $(seq $n); do "$@" & done\nwait\nexit 1\n')
    strange.chmod(0o755)
    status, stderr = run("mlp", "--steps", "3", "--engine", "mpi", "--workers", "2", "--mpiexec", str(strange))
    assert status == 2
    assert "2 MPI ranks were started, but this one sees a world of 1" in stderr
    assert not has_steps(tmp_path)


def test_under_the_users_own_mpiexec(start: Start, tmp_path: Path) -> None:
    process = start(*find_mpiexec(), "-n", "2", *COMMAND, "mlp", "--data", "mnist:train=300,test=50", "--json")
    stdout, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert '"engine":"mpi"' in stdout
    assert '"workers":2' in stdout
    assert stdout.count('"weights_sha256"') == 1, "one JSON object, from rank 0"
    assert len(list(tmp_path.glob("runs/*"))) == 1


def test_a_bad_request_under_mpiexec_is_said_once(start: Start) -> None:
    process = start(*find_mpiexec(), "-n", "2", *COMMAND, "mlp", "--sync", "nonsense")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert stderr.count("manyhands: ") == 1


def test_a_rank_that_raises_under_the_users_own_mpiexec(start: Start) -> None:
    process = start(*find_mpiexec(), "-n", "2", *COMMAND, f"{FAULTY}:raises")
    _, stderr = process.communicate(timeout=90)
    assert process.returncode != 0
    assert re.search(r"manyhands: rank \d on \S+ failed at step \d+: RuntimeError", stderr)


def test_under_the_users_own_torchrun(start: Start, tmp_path: Path) -> None:
    process = start(*TORCHRUN, "2", *COMMAND[1:], "mlp", "--data", "mnist:train=300,test=50", "--json")
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr
    assert '"engine":"torch"' in stdout
    assert '"workers":2' in stdout
    assert stdout.count('"weights_sha256"') == 1, "one JSON object, from rank 0"
    assert len(list(tmp_path.glob("runs/*"))) == 1


def test_a_bad_request_under_torchrun_is_said_once(start: Start) -> None:
    process = start(*TORCHRUN, "2", *COMMAND[1:], "mlp", "--workers", "3")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert stderr.count("manyhands: ") == 1
    assert "torchrun started 2 processes" in stderr


def test_a_rank_that_raises_under_the_users_own_torchrun_ends_a_server_too(start: Start) -> None:
    process = start(*TORCHRUN, "2", *COMMAND[1:], f"{FAULTY}:raises", "--sync", "async-server")
    _, stderr = process.communicate(timeout=90)
    assert process.returncode != 0
    assert re.search(r"manyhands: rank 0 on \S+ failed at step \d+: RuntimeError", stderr)
    assert "SIGKILL" not in stderr, "it does not wait for torchrun to lose its patience"
