"""Ranks as MPI processes: started by us through mpiexec, or by the user's own mpiexec or srun."""

import sys
import time
from typing import Any

import torch

from manyhands import tasks
from manyhands.comm.mpi import world
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, RankFailed, check
from manyhands.launch.base import Launcher, Observer, Worker
from manyhands.launch.environment import outer_world
from manyhands.launch.interrupt import stop_on_signal
from manyhands.launch.local import LocalWatch
from manyhands.launch.rank import check_world, run_process
from manyhands.launch.supervisor import find_mpiexec, supervise
from manyhands.training import Job

NO_FILE = (
    "this engine starts new processes, which must import the task: "
    "give it a name at the top level of a file, or pass 'FILE.py:VARIABLE'"
)


class ProcessLauncher(Launcher):
    """Joins the world this process was started in, or starts one."""

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        """Join the processes that are there, or start them."""
        return join_world(worker, job, observe) if outer_world() else supervise(worker, job, observe)

    def agree(self, text: str) -> str:
        """Return rank 0's text."""
        return agree_in_world(text) if outer_world() else text

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, or the supervisor."""
        outer = outer_world()
        return outer is None or outer.rank == 0


def check_outer(config: RunConfig) -> None:
    """Refuse what other processes could not do: import the task, or be as many as mpiexec did not start."""
    check(config.task in tasks.names() or ".py" in config.task, NO_FILE)
    outer = outer_world()
    if outer is None:
        find_mpiexec(config.mpiexec)
    else:
        check(
            config.workers == outer.size,
            f"mpiexec started {outer.size} processes, but --workers is {config.workers}; leave --workers out",
        )


def agree_in_world(text: str) -> str:
    """Broadcast rank 0's text."""
    outer = outer_world()
    assert outer is not None
    comm = world()
    check_world(comm, outer.size)
    padded = torch.tensor(list(text.encode().ljust(1024)), dtype=torch.uint8)
    comm.broadcast_(padded)
    return bytes(padded.tolist()).decode().strip()


def join_world(worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
    """Run the worker as the rank this process is; a failure here ends all ranks."""
    comm = world()
    check_world(comm, job.config.workers)

    def report(error: ManyhandsError) -> None:
        if isinstance(error, RankFailed) or comm.rank == 0:
            print(f"manyhands: {error}", file=sys.stderr)
        else:
            time.sleep(1)  # rank 0 has the same to say, and must not be ended before it has

    with stop_on_signal(say=comm.rank == 0) as stop:
        return run_process(worker, job, comm, lambda _: LocalWatch(stop, observe), report)
