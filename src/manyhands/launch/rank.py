"""The program of each process that the supervisor starts, and the ranks of one process of any run.

`python -m manyhands.launch.rank LIVE/job.json` is an MPI process; engine torch adds the address at which the ranks
meet, the rank, and for rank 0 the number of the open file that listens there.
"""

import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # torch takes seconds to import, and meanwhile only the supervisor answers these signals
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if len(sys.argv) == 2:  # before the imports, so that a rank which is killed meanwhile is named as well
        from manyhands.launch.guard.process import start_guard
        from manyhands.launch.mailbox import writing_death

        start_guard(writing_death(Path(sys.argv[1])))

import importlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from manyhands import tasks
from manyhands.comm import Comm
from manyhands.comm.hybrid import HybridComm
from manyhands.comm.mpi import MPIComm
from manyhands.comm.texts import gather_texts
from manyhands.comm.threads import ThreadComm, ThreadGroup
from manyhands.comm.torch_ import PeerLost, TorchComm, connect
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, exit_status
from manyhands.launch.base import Worker, failure
from manyhands.launch.blas_threads.count import process_settings
from manyhands.launch.guard.meeting import World, check_world, meet_mpi
from manyhands.launch.guard.process import LOST_S
from manyhands.launch.guard.state import FailureKnown, own_state
from manyhands.launch.in_process import run_threads
from manyhands.launch.mailbox import LiveFolder, LiveWatch, read_job, stop_on_signals, write_failure
from manyhands.machine import facts
from manyhands.machine.parent import die_with_parent
from manyhands.record.files import write_atomically
from manyhands.sync.base import num_ranks
from manyhands.tasks.setup import device_of, load_data
from manyhands.training.job import Job


def run_process(
    worker: Worker,
    job: Job,
    comm: World,
    watches: Sequence[Any],
    report: Callable[[ManyhandsError], None],
) -> list[dict[str, Any]]:
    """Run this process's ranks, one or the `threads` of the hybrid engine; return their results.

    A failure is reported and then ends every rank of the world: other processes may be waiting for this one.
    """
    threads = job.config.threads
    group = ThreadGroup(threads)
    comms: list[Comm] = [comm]
    if isinstance(comm, MPIComm) and job.config.engine == "hybrid":
        comms = [HybridComm(end, ThreadComm(group, t)) for t, end in enumerate(comm.for_threads(threads))]

    def end_all(error: ManyhandsError) -> None:
        try:
            report(error)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where nobody reads what is printed
            comm.abort(exit_status(error))

    workers, cores = share_of_host(comm, job.config.workers)
    with process_settings(job.config, workers * threads, cores):
        results = run_threads(worker, job, comms, watches, end_all)
    if isinstance(comm, MPIComm):
        comm.settle()
    return results


def share_of_host(comm: Comm, workers: int, host: str = "") -> tuple[int, int]:
    """Return the number of worker processes on this host, and the number of cores that these may use together.

    Batch systems may bind each process to cores of its own; servers wait more than they compute, and do not count.
    """
    host = host or socket.gethostname()
    texts = gather_texts(comm, json.dumps([host, sorted(facts.core_ids())]))
    here = {rank: cores for rank, (name, cores) in enumerate(map(json.loads, texts)) if name == host}
    bound = len(set().union(*here.values()))
    return max(1, sum(rank < workers for rank in here)), min(bound, facts.cores()) if facts.cpu_limit() else bound


def main() -> None:
    """Run the job's worker as this rank; report any failure before every rank is ended."""
    job, worker_name = read_job(Path(sys.argv[1]))
    folder, threads = LiveFolder(job.run), job.config.threads
    die_with_parent(signal.SIGKILL)  # a rank that waits for others would not notice that the supervisor is gone
    comm = _meet(job.config, *sys.argv[2:])

    def report(error: ManyhandsError) -> None:
        if isinstance(error, PeerLost) and isinstance(comm, MPIComm):
            time.sleep(LOST_S)
        write_failure(folder.failure(comm.rank), error)
        own_state().known = FailureKnown.USER

    try:
        check_world(comm, num_ranks(job.config) // threads)
        sys.path[:0] = json.loads(os.environ.get("MANYHANDS_PATH", "[]"))
        if threads > 1:  # read the data once for all of them
            started, task = time.perf_counter(), tasks.load(job.config.task)
            data = load_data(task, job.config)
            job = replace(job, task=task, data=data, read_s=time.perf_counter() - started)
        worker, ranks = load_worker(worker_name), range(comm.rank * threads, (comm.rank + 1) * threads)
        stop = stop_on_signals()
        watches = [LiveWatch(folder, rank, stop) for rank in ranks]
        for rank, result in zip(ranks, run_process(worker, job, comm, watches, report), strict=True):
            write_atomically(folder.result(rank), json.dumps(result))
        comm.close() if isinstance(comm, TorchComm) else comm.barrier()
    except BaseException as error:
        report(failure(error, comm.rank * threads, -1))
        comm.abort(1)


def load_worker(name: str) -> Worker:
    """Return the function that `read_job` named."""
    module, _, function = name.partition(":")
    worker: Worker = getattr(importlib.import_module(module), function)
    return worker


def _meet(config: RunConfig, address: str = "", rank: str = "0", listener: str = "") -> World:
    """Join the other ranks: through MPI, or at the address that the supervisor gave."""
    if not address:
        return meet_mpi()
    port = socket.socket(fileno=int(listener)) if listener else None
    return connect(address, int(rank), num_ranks(config), str(device_of(config, int(rank))), port)


if __name__ == "__main__":
    main()
