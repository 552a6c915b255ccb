"""Engine torch: who failed is told from who only lost a connection; processes of torchrun are recognised."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch_workers

from manyhands import launch
from manyhands.comm.torch_ import PeerLost
from manyhands.config import make_config
from manyhands.errors import Diverged, ManyhandsError, RankFailed, UserError
from manyhands.launch import supervisor
from manyhands.launch.base import Worker
from manyhands.launch.environment import OuterWorld, check_alone, outer_world
from manyhands.launch.guard.process import cause_of
from manyhands.launch.mailbox import LiveFolder, LiveWatch, read_failures, write_failure
from manyhands.launch.spawn import Children, Mpiexec, num_processes
from manyhands.launch.supervisor import _RankProcesses
from manyhands.record.run import RunDir, open_run
from manyhands.run import ignore
from manyhands.training.job import Job

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
MPIEXEC = {"PMI_RANK": "1", "PMI_SIZE": "4"}
SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.fixture
def started_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Set the variables of a launcher, and no others."""

    def set_them(variables: dict[str, str]) -> None:
        for name in (*TORCHRUN, *MPIEXEC, *SRUN, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALRANKID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_them


@pytest.fixture
def folder(tmp_path: Path) -> LiveFolder:
    """Open a live folder."""
    live = LiveFolder(RunDir(tmp_path))
    live.open()
    return live


def _launch(worker: Worker, out: Path, size: int = 2) -> list[dict[str, Any]]:
    config, run = make_config({"task": "mlp", "engine": "torch", "workers": size}), RunDir(out / "run")
    open_run(run, config)
    return launch.make("torch").launch(worker, Job(config, run), ignore)


@pytest.mark.parametrize(
    ("worker", "rank"), [(torch_workers.fail_alone, 1), (torch_workers.leave_alone, 0)], ids=["waits", "computes"]
)
def test_the_rank_that_failed_is_named_not_those_that_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Worker, rank: int
) -> None:
    monkeypatch.setattr(supervisor, "FAILURE_GRACE_S", 0.5)
    with pytest.raises(RankFailed, match="ZeroDivisionError") as caught:
        _launch(worker, tmp_path)
    assert (caught.value.rank, caught.value.step) == (rank, 4)
    assert not RunDir(tmp_path / "run").live.exists()


def test_results_come_in_rank_order_and_nothing_else_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _launch(torch_workers.introduce, tmp_path) == [{"rank": r, "size": 2} for r in range(2)]
    out, err = capsys.readouterr()
    assert not out
    assert sorted(err.split("\n")) == ["", "rank 0 speaks", "rank 1 speaks"]


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        ({}, None),
        (TORCHRUN, OuterWorld(1, 4, "torch", "torchrun")),
        ({**SRUN, **TORCHRUN}, OuterWorld(1, 4, "torch", "torchrun")),
        ({**TORCHRUN, "WORLD_SIZE": "1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),
        ({"RANK": "1", "WORLD_SIZE": "4", **MPIEXEC}, OuterWorld(1, 4, "mpi", "mpiexec")),
        (SRUN, OuterWorld(0, 2, "mpi", "srun")),
        ({**SRUN, "PMI_RANK": "0", "PMI_SIZE": "2"}, OuterWorld(0, 2, "mpi", "srun")),
        ({**SRUN, **MPIEXEC, "MPI_LOCALRANKID": "1"}, OuterWorld(1, 4, "mpi", "mpiexec")),
    ],
)
def test_who_started_the_processes_is_seen(
    started_by: Callable[[dict[str, str]], None], variables: dict[str, str], world: OuterWorld | None
) -> None:
    started_by(variables)
    assert outer_world() == world


@pytest.mark.parametrize(
    ("engine", "workers", "variables", "says"),
    [
        ("torch", 3, TORCHRUN, "torchrun started 4 processes, but --workers is 3; leave --workers out"),
        ("mpi", 4, TORCHRUN, "torchrun started 4 processes, which engine mpi cannot join; use --engine torch"),
        ("hybrid", 4, TORCHRUN, "which engine hybrid cannot join"),
        ("torch", 4, MPIEXEC, "mpiexec started 4 processes, which engine torch cannot join; use --engine mpi"),
    ],
)
def test_processes_that_cannot_be_joined_are_refused(
    started_by: Callable[[dict[str, str]], None], engine: str, workers: int, variables: dict[str, str], says: str
) -> None:
    started_by(variables)
    with pytest.raises(UserError, match=says):
        launch.make(engine).check(make_config({"task": "mlp", "engine": engine, "workers": workers}))


def test_as_many_as_torchrun_started_are_allowed(started_by: Callable[[dict[str, str]], None]) -> None:
    started_by(TORCHRUN)
    launcher = launch.make("torch")
    launcher.check(make_config({"task": "mlp", "engine": "torch", "workers": 4}))
    assert not launcher.leads
    with pytest.raises(UserError, match="add --engine torch, or start it without torchrun"):
        check_alone("threads")


def test_a_task_without_a_file_is_refused(started_by: Callable[[dict[str, str]], None]) -> None:
    started_by({})
    with pytest.raises(UserError, match="must import the task"):
        launch.make("torch").check(make_config({"task": "<Task>", "engine": "torch", "workers": 2}))


def test_threads_of_a_hybrid_run_share_a_process() -> None:
    assert num_processes(make_config({"task": "mlp", "engine": "hybrid", "workers": 2, "threads": 3})) == 2
    assert num_processes(make_config({"task": "mlp", "engine": "torch", "workers": 5})) == 5


@pytest.mark.parametrize(
    ("status", "says"),
    [(-9, "killed by signal 9 (SIGKILL)"), (7, "ended by itself with exit code 7")],
)
def test_an_exit_status_is_put_in_words(status: int, says: str) -> None:
    assert cause_of(status) == says


def test_failures_survive_the_live_folder(folder: LiveFolder) -> None:
    written = [PeerLost("broke"), UserError("bad"), Diverged("nan"), RankFailed(rank=2, host="h", step=5, cause="why")]
    for rank, error in enumerate(written):
        write_failure(folder.failure(rank), error)
    read = {type(error): str(error) for error in read_failures(folder)}
    assert read == {type(error): str(error) for error in written}


LOST, OWN = PeerLost("broke"), RankFailed(rank=2, host="h", step=5, cause="why")


@pytest.mark.parametrize(
    ("reported", "statuses", "says"),
    [
        ({0: LOST, 2: OWN}, [1, None, 1], "rank 2 on h failed at step 5: why"),
        ({0: LOST, 2: LOST}, [1, -9, 1], r"rank 1 on \S+ failed at step 11: killed by signal 9 \(SIGKILL\)"),
        ({0: LOST}, [1, 3, -11], r"rank 2 on \S+ failed at step 12: killed by signal 11 \(SIGSEGV\)"),
        ({0: LOST, 1: LOST}, [1, 1, 0], r"rank 2 on \S+ failed at step 12: ended by itself with exit code 0"),
        ({0: LOST, 1: LOST, 2: LOST}, [1, 1, 1], "broke"),
    ],
    ids=["own", "killed", "killed-and-ended", "left", "parted"],
)
def test_the_one_to_blame(
    folder: LiveFolder, reported: dict[int, ManyhandsError], statuses: list[int | None], says: str
) -> None:
    for rank in range(3):
        LiveWatch(folder, rank).at(10 + rank)
    for rank, error in reported.items():
        write_failure(folder.failure(rank), error)
    with pytest.raises(ManyhandsError, match=f"^{says}$"):
        raise _RankProcesses(3, folder, Children()).failure(statuses)


def test_a_rank_that_died_before_it_could_say_where_it_is(folder: LiveFolder) -> None:
    error = _RankProcesses(2, folder, Children()).failure([None, -11])
    assert "rank 1 on" in str(error)
    assert "failed before the first step: killed by signal 11 (SIGSEGV)" in str(error)


def test_under_mpiexec_the_first_one_that_a_guard_tells_of_is_to_blame(folder: LiveFolder) -> None:
    for rank in range(3):
        LiveWatch(folder, rank).at(10 + rank)
    write_failure(folder.failure(0), LOST)
    for rank, cause in ((2, "killed"), (1, "killed too")):
        write_failure(folder.death(rank), RankFailed(rank=rank, host="there", step=-1, cause=cause))
    with pytest.raises(RankFailed, match=r"^rank 2 on there failed at step 12: killed$"):
        raise _RankProcesses(3, folder, Mpiexec()).failure([9])
    write_failure(folder.failure(1), OWN)
    with pytest.raises(RankFailed, match=r"^rank 2 on h failed at step 5: why$"):
        raise _RankProcesses(3, folder, Mpiexec()).failure([9])


def test_mpiexec_that_is_killed_is_not_a_rank(folder: LiveFolder) -> None:
    LiveWatch(folder, 0).at(3)
    with pytest.raises(ManyhandsError, match=r"^mpiexec was killed by signal 9 \(SIGKILL\)$"):
        raise _RankProcesses(2, folder, Mpiexec()).failure([-9])
