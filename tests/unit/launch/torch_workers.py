"""What ranks of the tests of engine torch do: a module of its own, since each rank imports it."""

import time
from typing import Any

from manyhands.comm import Comm
from manyhands.training.job import Job
from manyhands.training.watch import Watch


def fail_alone(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Let rank 1 fail while the others wait for it."""
    watch.at(4)
    if comm.rank == 1:
        raise ZeroDivisionError("mine")
    comm.barrier()
    return {}


def leave_alone(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Let rank 1 compute for ever while rank 0 fails."""
    watch.at(4)
    if comm.rank == 0:
        raise ZeroDivisionError("mine")
    time.sleep(600)
    return {}


def introduce(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Say who is there, with a word on the standard output that must not get lost, nor mix with a result."""
    print(f"rank {comm.rank} speaks")
    return {"rank": comm.rank, "size": comm.size}
