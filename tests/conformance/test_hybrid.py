"""Threads of one MPI process do not touch each other's messages, and share the data."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comm_checks import check_large_messages_of_many_senders
from shapes import Group

from manyhands import RunRecord
from manyhands.comm import Comm
from manyhands.record.run import RunDir, read_steps
from manyhands.training.job import Job
from manyhands.training.watch import Watch

pytestmark = pytest.mark.timeout(300)

ROUNDS = 5


def send_much(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Send large messages from every thread, over and over; return what arrived wrongly."""
    wrong = []
    for i in range(ROUNDS):
        watch.at(i)
        try:
            check_large_messages_of_many_senders(comm)
        except AssertionError as error:
            wrong.append(str(error))
    return {"wrong": wrong}


def test_large_messages_of_many_threads_arrive_whole(tmp_path: Path) -> None:
    results = Group("hybrid", 2, 4).launch(send_much, tmp_path)
    assert [result["wrong"] for result in results] == [[]] * 8


def tell_data(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Return which data this thread was given, and by which process."""
    comm.barrier()
    return {"process": os.getpid(), "data": id(job.data) if job.data else None}


def test_threads_of_a_process_share_one_copy_of_the_data(tmp_path: Path) -> None:
    results = Group("hybrid", 2, 3).launch(tell_data, tmp_path)
    assert all(result["data"] for result in results)
    assert len({result["process"] for result in results}) == 2
    assert len({(result["process"], result["data"]) for result in results}) == 2


def test_strategies_that_send_between_threads_have_the_bits_of_other_engines(
    tmp_path: Path, train: Callable[..., RunRecord]
) -> None:
    same: dict[str, Any] = {"steps": 40, "data": "mnist:train=2000,test=500"}
    hybrid = {"engine": "hybrid", "workers": 2, "threads": 4}
    serial = train("mlp", exact=True, **same)
    server = train("mlp", exact=True, sync="gather-server", **hybrid, **same)
    assert server.weights_sha256 == serial.weights_sha256
    gossip, threads = (
        train("mlp", sync="gossip", blas_threads=1, **engine, **same)
        for engine in (hybrid, {"engine": "threads", "workers": 8})
    )
    # The last mean of the weights is summed in another order, but every loss before it has the same bits.
    assert _losses(tmp_path / gossip.id) == _losses(tmp_path / threads.id)


def _losses(run: Path) -> list[float]:
    return [step["loss"] for step in read_steps(RunDir(run))]
