"""A rank that ends is named, with its host and its reason, and the others are gone: whoever started them.

Ranks are started by us through mpiexec, or from outside by mpiexec, srun (of a real Slurm) and torchrun.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from manyhands.launch.guard.segments import FOLDER, segments_of
from manyhands.launch.spawn import find_mpiexec

sys.path.insert(0, str(Path(__file__).parent))
import slurm

TASK = f"{Path(__file__).with_name('outer_task.py')}:task"
COMMAND = [sys.executable, "-m", "manyhands", "train"]
MPIEXEC = find_mpiexec()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *COMMAND[1:]]
SRUN = ["srun", "-N2", "-n2", "--mpi=pmi2"]
HOST = socket.gethostname()
START_S = 60
"""How long ranks may take until they train."""
GONE_S = 10
"""How soon after a failure every other rank is gone."""
RANK_VARIABLES = ("PMI_RANK", "RANK")

# All ranks are processes of their own: a signal ends a test that hangs, where the usual way would end all of pytest.
pytestmark = pytest.mark.timeout(120, method="signal")

Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command in an empty folder; afterwards fail if a process that works there is left."""
    begun: list[Process] = []

    def start(*command: str, **env: str) -> Process:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **env}, **pipes))  # type: ignore[call-overload]
        return begun[-1]

    yield start
    give_up = time.monotonic() + GONE_S
    while (left := workers_in(tmp_path)) and time.monotonic() < give_up:
        time.sleep(0.1)
    for process in (*left, *begun):
        process.kill()
    for process in begun:
        process.communicate()
    assert not left, f"left behind: {left}"


def workers_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in this folder and have a rank, guards among them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and any(name in process.environ() for name in RANK_VARIABLES):
                found.append(process)
        except psutil.Error:
            continue
    return found


def process_of(rank: int, folder: Path) -> psutil.Process:
    """Return the process that trains as this rank."""
    for process in workers_in(folder):
        words, told = process.cmdline(), process.environ()
        if str(rank) in (told.get(name) for name in RANK_VARIABLES) and "manyhands" in " ".join(words[1:]):
            return process
    raise AssertionError(f"there is no rank {rank}")


def wait_until(condition: Callable[[], object], process: Process) -> None:
    """Poll until the condition holds; a process that ends before that, or takes too long, fails the test."""
    give_up = time.monotonic() + START_S
    while not condition():
        if process.poll() is None and time.monotonic() > give_up:
            process.terminate()
            pytest.fail(f"not after {START_S} s: {process.communicate(timeout=10)}")
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def trains(folder: Path) -> bool:
    return any(p.stat().st_size > 0 for p in folder.glob("runs/*/steps.jsonl"))


def end_rank(rank: int, process: Process, folder: Path) -> str:
    """Kill a rank that trains; return what the run then says."""
    wait_until(lambda: trains(folder), process)
    process_of(rank, folder).kill()
    return said(process)


def said(process: Process, status: int | None = None) -> str:
    stderr = process.communicate(timeout=90)[1]
    assert process.returncode not in (0, None), stderr
    assert status is None or process.returncode == status, stderr
    return stderr


def names_only(stderr: str, rank: int, reason: str) -> bool:
    """Tell whether this rank alone is blamed, with its host and its reason."""
    failures = re.findall(r"manyhands: rank (\d+) on (\S+) failed [^:]*: (.*)", stderr)
    return failures == [(str(rank), HOST, reason)]


KILLED = "killed by signal 9 (SIGKILL)"
EXITED = "ended by itself with exit code 7"
NEVER_MET = "its process ended before the ranks had met"


@pytest.mark.parametrize(("rank", "sync"), [(2, "allreduce"), (3, "async-server")])
def test_a_killed_rank_is_named(start: Start, tmp_path: Path, rank: int, sync: str) -> None:
    process = start(*COMMAND, TASK, "--engine", "mpi", "--workers", "3", "--sync", sync)
    stderr = end_rank(rank, process, tmp_path)
    assert process.returncode == 1
    assert names_only(stderr, rank, KILLED), stderr


def test_a_rank_that_exits_is_named_with_its_own_status(start: Start) -> None:
    stderr = said(start(*COMMAND, TASK, "--engine", "mpi", "--workers", "3", EXITS="1"), status=1)
    assert names_only(stderr, 1, EXITED), stderr


def test_a_rank_killed_under_the_users_own_mpiexec_is_named(start: Start, tmp_path: Path) -> None:
    process = start(*MPIEXEC, "-n", "3", *COMMAND, TASK)
    wait_until(lambda: trains(tmp_path), process)
    named = [segments_of(p.pid) for p in workers_in(tmp_path)]
    assert named == [set()] * 6, "shared memory without a name is freed with the last of three ranks and guards"
    stderr = end_rank(2, process, tmp_path)
    assert names_only(stderr, 2, KILLED), stderr


def own_data(folder: Path) -> str:
    """Return a shell's words that train with a file that all ranks have but rank 1."""
    make = "import numpy as n; n.savez('data.npz', x_train=n.ones((99, 784), 'f4'), y_train=n.arange(99) % 10)"
    subprocess.run([sys.executable, "-c", make], cwd=folder, check=True)
    return f'[ "$PMI_RANK" = 1 ] && cd /; exec {shlex.join(COMMAND)} mlp --steps 3 --data npz:data.npz'


def test_an_error_of_one_rank_alone_is_shown_under_mpiexec(start: Start, tmp_path: Path) -> None:
    stderr = said(start(*MPIEXEC, "-n", "3", "sh", "-c", own_data(tmp_path)), status=2)
    assert re.findall("manyhands: .*", stderr) == [f"manyhands: rank 1 on {HOST}: there is no file 'data.npz'"]


def test_an_error_of_one_rank_alone_ends_a_script_under_mpiexec(start: Start, tmp_path: Path) -> None:
    options = "steps=3, sync='none' * int(os.environ['PMI_RANK']) or 'allreduce'"
    script = f"import manyhands, os; manyhands.train('mlp', {options})"
    stderr = said(start(*MPIEXEC, "-n", "2", sys.executable, "-c", script))
    assert "UserError: there is no sync 'none'" in stderr
    assert f"OthersFailed: rank 1 on {HOST} failed: there is no sync 'none'" in stderr


def test_a_rank_that_ends_before_mpi_begins_is_named_under_mpiexec(start: Start) -> None:
    early = f'[ "$PMI_RANK" = 1 ] && exit 127; exec {shlex.join(COMMAND)} mlp'
    stderr = said(start(*MPIEXEC, "-n", "3", "sh", "-c", early))
    assert names_only(stderr, 1, NEVER_MET), stderr


def other_last_rank(folder: Path, does: str) -> str:
    """Return an mpiexec whose last rank does something else first."""
    path = folder / "own-mpiexec"
    last = f"sh -c '{does}; exec \"$@\"' sh"
    path.write_text(f'#!/bin/sh\nn=$2; shift 2\nexec {MPIEXEC[0]} -n $((n - 1)) "$@" : -n 1 {last} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_rank_of_ours_that_ends_before_mpi_begins_is_named(start: Start, tmp_path: Path) -> None:
    own = other_last_rank(tmp_path, "exit 127")
    stderr = said(start(*COMMAND, "mlp", "--engine", "mpi", "--workers", "2", "--mpiexec", own), status=1)
    assert names_only(stderr, 1, NEVER_MET), stderr


def test_a_rank_of_ours_that_is_killed_while_it_imports_torch_is_named(start: Start, tmp_path: Path) -> None:
    fatal = tmp_path / "first" / "torch.py"
    fatal.parent.mkdir()
    fatal.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    own = other_last_rank(tmp_path, f"export PYTHONPATH={fatal.parent}")
    stderr = said(start(*COMMAND, "mlp", "--engine", "mpi", "--workers", "2", "--mpiexec", own), status=1)
    assert names_only(stderr, 1, KILLED), stderr


def test_nobody_is_blamed_for_a_killed_guard(start: Start, tmp_path: Path) -> None:
    process = start(*COMMAND, TASK, "--engine", "mpi", "--workers", "2")
    wait_until(lambda: trains(tmp_path), process)
    (guard,) = (p for p in workers_in(tmp_path) if p.cmdline()[0].startswith("manyhands-guard of rank 1"))
    guard.kill()
    stderr = said(process, status=1)
    assert "mpiexec ended with status 9" in stderr
    assert "PID" not in stderr, "mpiexec names any process that it has killed"


def test_sigterm_ends_ranks_that_wait_for_one_and_frees_their_memory(start: Start, tmp_path: Path) -> None:
    own = other_last_rank(tmp_path, "sleep 600")
    process = start(*COMMAND, "mlp", "--engine", "mpi", "--workers", "2", "--mpiexec", own)
    wait_until(lambda: any(segments_of(p.pid) for p in workers_in(tmp_path)), process)
    waiting = {path for p in workers_in(tmp_path) for path in segments_of(p.pid)}
    wait_until(lambda: any(path.name in mark.read_text() for mark in marks() for path in waiting), process)
    process.send_signal(signal.SIGTERM)
    said(process, status=130)
    assert not [path for path in waiting if path.exists()]


def marks() -> list[Path]:
    return list(FOLDER.glob("manyhands_waits-*"))


def test_ranks_of_a_torchrun_that_is_killed_end(start: Start, tmp_path: Path) -> None:
    process = start(*TORCHRUN, TASK)
    wait_until(lambda: trains(tmp_path), process)
    process.kill()
    assert f"rank 0 on {HOST} failed" in said(process)


def test_a_rank_killed_under_torchrun_is_named(start: Start, tmp_path: Path) -> None:
    stderr = end_rank(1, start(*TORCHRUN, TASK), tmp_path)
    assert names_only(stderr, 1, KILLED), stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a Slurm of two nodes."""
    if reason := slurm.missing():
        pytest.skip(reason)
    with slurm.slurm(tmp_path_factory.mktemp("slurm")) as env:
        yield env


def test_a_rank_killed_under_srun_is_named(start: Start, cluster: dict[str, str], tmp_path: Path) -> None:
    stderr = end_rank(1, start(*SRUN, *COMMAND, TASK, **cluster), tmp_path)
    assert names_only(stderr, 1, KILLED), stderr


def test_without_pmi_a_step_of_slurm_is_cancelled(start: Start, cluster: dict[str, str], tmp_path: Path) -> None:
    late = f'[ "$PMI_RANK" = 0 ] && exec sleep 600; unset PMI_FD; exec {shlex.join(COMMAND)} mlp'
    process = start(*SRUN, "sh", "-c", late, **cluster)
    wait_until(lambda: len([p for p in workers_in(tmp_path) if "manyhands-guard" in p.cmdline()[0]]), process)
    process_of(1, tmp_path).kill()
    assert names_only(said(process), 1, KILLED)


def test_a_rank_that_ends_before_mpi_begins_is_named_under_srun(start: Start, cluster: dict[str, str]) -> None:
    early = f'[ "$SLURM_PROCID" = 1 ] && exit 127; exec {shlex.join(COMMAND)} mlp'
    stderr = said(start("srun", "-N1", "-n2", "--mpi=pmi2", "sh", "-c", early, **cluster))
    assert names_only(stderr, 1, NEVER_MET), stderr
