"""What one process of a run does, started by the supervisor.

`python -m manyhands.launch.rank LIVE/job.json` is an MPI process; engine torch adds the address at which the ranks
meet, the rank, and for rank 0 the number of the open file that listens there.
"""

import importlib
import json
import os
import signal
import socket
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
from manyhands.comm.torch_ import TorchComm, connect, text_row
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, UserError
from manyhands.launch.base import Worker, failure
from manyhands.launch.cores import process_settings
from manyhands.launch.interrupt import die_with_parent
from manyhands.launch.live import LiveFolder, LiveWatch, read_job, write_failure
from manyhands.launch.local import run_threads
from manyhands.sync.base import num_ranks
from manyhands.tasks.setup import device_of
from manyhands.training import Job

MAX_CORES = 8192

World = MPIComm | TorchComm
"""The comm of all processes of a run."""


def check_world(comm: World, expected: int) -> None:
    """Refuse n worlds of size 1, which an mpiexec of another MPI gives without a word."""
    if comm.size != expected:
        raise UserError(
            f"{expected} MPI ranks were started, but this one sees a world of {comm.size}: mpiexec and the MPI "
            "library that mpi4py loads belong to different installations; 'manyhands doctor' shows which"
        )


def run_process(
    worker: Worker,
    job: Job,
    comm: World,
    watch_of: Callable[[int], Any],
    report: Callable[[ManyhandsError], None],
) -> list[dict[str, Any]]:
    """Run this process's ranks: one, or `threads` of them for the hybrid engine.

    A failure is reported and then ends every rank of the world: other processes may be waiting for this one.
    """
    threads = job.config.threads
    group = ThreadGroup(threads)
    comms: list[Comm] = [comm]
    if isinstance(comm, MPIComm) and job.config.engine == "hybrid":
        comms = [HybridComm(comm, ThreadComm(group, t)) for t in range(threads)]

    def end_all(error: ManyhandsError) -> None:
        try:
            report(error)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where nobody reads what is printed
            comm.abort(1)

    workers, cores = share_of_host(comm, job.config.workers)
    with process_settings(job.config, workers * threads, cores):
        return run_threads(worker, job, comms, [watch_of(c.rank) for c in comms], end_all)


def share_of_host(comm: Comm, workers: int) -> tuple[int, int]:
    """Return how many of the workers' processes share this one's host, and how many cores it gives them together.

    Batch systems may bind each process to cores of its own; servers wait more than they compute.
    """
    own = torch.zeros(MAX_CORES, dtype=torch.uint8)
    own[list(facts.core_ids())] = 1
    name = text_row(socket.gethostname())
    cores, names = comm.all_gather(own), comm.all_gather(name)
    here = (names == name).all(1)
    return max(1, int(here[:workers].sum())), int(cores[here].any(0).sum())


def main() -> None:
    """Do the job; whatever goes wrong is written down before every rank is ended."""
    die_with_parent(signal.SIGKILL)  # a rank that waits for others would not see that the supervisor is gone
    job, name = read_job(Path(sys.argv[1]))
    module, _, function = name.partition(":")
    folder = LiveFolder(job.run)
    comm = _meet(job.config, *sys.argv[2:])
    try:
        check_world(comm, num_ranks(job.config) // job.config.threads)
        sys.path[:0] = json.loads(os.environ.get("MANYHANDS_PATH", "[]"))
        worker: Worker = getattr(importlib.import_module(module), function)

        def watch_of(rank: int) -> LiveWatch:
            watch = LiveWatch(folder, rank)
            watch.stop_on_sigterm()
            return watch

        results = run_process(worker, job, comm, watch_of, lambda error: write_failure(folder, error, comm.rank))
        for t, result in enumerate(results):
            rank = comm.rank * job.config.threads + t
            folder.result(rank).write_text(json.dumps(result))
        comm.close() if isinstance(comm, TorchComm) else comm.barrier()
    except BaseException as error:
        write_failure(folder, failure(error, comm.rank, -1), comm.rank)
        comm.abort(1)


def _meet(config: RunConfig, address: str = "", rank: str = "0", listener: str = "") -> World:
    """Join the other ranks: through MPI, or at the address that the supervisor gave."""
    if not address:
        return world()
    port = socket.socket(fileno=int(listener)) if listener else None
    return connect(address, int(rank), num_ranks(config), str(device_of(config, int(rank))), port)


if __name__ == "__main__":
    main()
