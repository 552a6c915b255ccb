"""Ranks inside one process: their results in order, one failure told, nobody left waiting; the cores given back."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands import launch
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.errors import RankFailed, UserError
from manyhands.launch.blas_threads.count import blas_threads
from manyhands.launch.environment import check_alone, outer_world
from manyhands.record.run import RunDir
from manyhands.run import ignore
from manyhands.training.job import Job
from manyhands.training.watch import Watch


def _launch(worker: launch.base.Worker, out: Path, size: int = 3) -> list[dict[str, Any]]:
    engine = "serial" if size == 1 else "threads"
    config = make_config({"task": "mlp", "engine": engine, "workers": size})
    return launch.make(engine).launch(worker, Job(config, RunDir(out)), ignore)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_results_come_in_rank_order(tmp_path: Path, size: int) -> None:
    assert _launch(lambda comm, job, watch: {"rank": comm.rank}, tmp_path, size) == [{"rank": r} for r in range(size)]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_rank_that_raises_ends_the_others_and_is_named(tmp_path: Path, bad: int) -> None:
    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        for step in range(5):
            watch.at(step)
            if comm.rank == bad and step == 3:
                raise ZeroDivisionError("mine")
            comm.barrier()
        return {}

    with pytest.raises(RankFailed) as caught:
        _launch(worker, tmp_path)
    error = caught.value
    assert (error.rank, error.step, error.host) == (bad, 3, socket.gethostname())
    assert "ZeroDivisionError" in error.cause
    assert "mine" in error.cause
    assert "in worker" in error.cause, "the traceback is the rank's"


def test_what_we_explain_ourselves_needs_no_traceback(tmp_path: Path) -> None:
    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        if comm.rank == 1:
            raise UserError("one sentence")
        comm.barrier()
        return {}

    with pytest.raises(UserError, match=r"^one sentence$"):
        _launch(worker, tmp_path)


def test_threads_run_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        together.wait()
        return {}

    assert len(_launch(worker, tmp_path, 4)) == 4


@pytest.mark.parametrize(("size", "per_rank"), [(1, 6), (2, 3), (4, 1)])
def test_the_cores_are_shared_out_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, per_rank: int
) -> None:
    monkeypatch.setattr("manyhands.machine.facts.cores", lambda: 6)
    before = torch.get_num_threads()
    results = _launch(lambda comm, job, watch: {"threads": torch.get_num_threads()}, tmp_path, size)
    assert results == [{"threads": per_rank}] * size
    assert torch.get_num_threads() == before
    with pytest.raises(RankFailed):
        _launch(lambda comm, job, watch: 1 / 0, tmp_path, size)  # type: ignore[arg-type,return-value]
    assert torch.get_num_threads() == before


def test_workers_do_not_ask_for_more_cores_than_there_are() -> None:
    config = make_config({"task": "mlp"})
    assert [blas_threads(config, ranks, 8) for ranks in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    assert blas_threads(make_config({"task": "mlp", "blas_threads": 5}), 3, 8) == 5
    assert blas_threads(make_config({"task": "mlp", "blas_threads": 5, "exact": True}), 3, 8) == 1


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, None),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, (1, 3)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, (0, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None),
        ({"PMI_RANK": "2"}, None),
    ],
)
def test_a_launch_from_outside_is_seen(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: tuple[int, int] | None
) -> None:
    for name in ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    world = outer_world()
    assert (world and (world.rank, world.size)) == place
    if place:
        with pytest.raises(UserError, match=f"started as {place[1]} processes"):
            check_alone("threads")
    else:
        check_alone("threads")


@pytest.mark.parametrize("engine", ["mpi", "hybrid"])
def test_another_number_of_workers_than_mpiexec_started_is_refused(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    launcher = launch.make(engine)
    launcher.check(make_config({"task": "mlp", "engine": engine, "workers": 4}))
    with pytest.raises(UserError, match="mpiexec started 4 processes, but --workers is 3"):
        launcher.check(make_config({"task": "mlp", "engine": engine, "workers": 3}))
