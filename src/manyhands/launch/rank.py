"""What one MPI process does: `python -m manyhands.launch.rank LIVE/job.json`, started by the supervisor."""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from manyhands import facts
from manyhands.comm import Comm
from manyhands.comm.hybrid import HybridComm
from manyhands.comm.mpi import MPIComm, world
from manyhands.comm.threads import ThreadComm, ThreadGroup
from manyhands.errors import ManyhandsError, UserError
from manyhands.launch.base import Worker, failure
from manyhands.launch.cores import process_settings
from manyhands.launch.interrupt import die_with_parent
from manyhands.launch.live import LiveFolder, LiveWatch, read_job, write_failure
from manyhands.launch.local import run_threads
from manyhands.training import Job

MAX_CORES = 8192


def check_world(comm: MPIComm, expected: int) -> None:
    """Refuse n worlds of size 1, which an mpiexec of another MPI gives without a word."""
    if comm.size != expected:
        raise UserError(
            f"{expected} MPI ranks were started, but this one sees a world of {comm.size}: mpiexec and the MPI "
            "library that mpi4py loads belong to different installations; 'manyhands doctor' shows which"
        )


def run_process(
    worker: Worker,
    job: Job,
    mpi: MPIComm,
    watch_of: Callable[[int], Any],
    report: Callable[[ManyhandsError], None],
) -> list[dict[str, Any]]:
    """Run this process's ranks: one, or `threads` of them for the hybrid engine.

    A failure is reported and then ends every rank of the world: other processes may be waiting for this one.
    """
    threads = job.config.threads
    group = ThreadGroup(threads)
    comms: list[Comm] = [mpi]
    if job.config.engine == "hybrid":
        comms = [HybridComm(mpi, ThreadComm(group, t)) for t in range(threads)]
    host = mpi.split_by_host()
    cores = torch.zeros(MAX_CORES, dtype=torch.int32)
    cores[list(facts.core_ids())] = 1
    host.all_reduce_(cores)  # batch systems may bind each rank to cores of its own

    def end_all(error: ManyhandsError) -> None:
        report(error)
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.abort(1)

    with process_settings(job.config, host.size * threads, int((cores > 0).sum())):
        return run_threads(worker, job, comms, [watch_of(c.rank) for c in comms], end_all)


def main() -> None:
    """Do the job; whatever goes wrong is written down before every rank is ended."""
    die_with_parent(signal.SIGKILL)  # a rank that waits for others would not see that mpiexec is gone
    job, name = read_job(Path(sys.argv[1]))
    module, _, function = name.partition(":")
    folder = LiveFolder(job.run)
    mpi = world()
    try:
        check_world(mpi, job.config.workers)
        sys.path[:0] = json.loads(os.environ.get("MANYHANDS_PATH", "[]"))
        worker: Worker = getattr(importlib.import_module(module), function)

        def watch_of(rank: int) -> LiveWatch:
            watch = LiveWatch(folder, rank)
            watch.stop_on_sigterm()
            return watch

        results = run_process(worker, job, mpi, watch_of, lambda error: write_failure(folder, error, mpi.rank))
        for t, result in enumerate(results):
            rank = mpi.rank * job.config.threads + t
            folder.result(rank).write_text(json.dumps(result))
        mpi.barrier()
    except BaseException as error:
        write_failure(folder, failure(error, mpi.rank, -1), mpi.rank)
        mpi.abort(1)


if __name__ == "__main__":
    main()
