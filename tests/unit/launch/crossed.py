"""A hybrid run in which one thread fails while the others wait for messages that it will not send, or are stuck."""

import time
from typing import Any

import torch

from manyhands.comm import Comm
from manyhands.training.job import Job
from manyhands.training.watch import Watch


def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Let rank 1 fail; rank 0, in its process, waits for rank 3 of the other, which waits for rank 1."""
    watch.at(4)
    t = torch.zeros(1)
    if comm.rank == 1:
        raise ZeroDivisionError("mine")
    if comm.rank == 0:
        comm.recv(t, 3)
    if comm.rank == 2:
        time.sleep(600)  # and never comes back
    if comm.rank == 3:
        comm.recv(t, 1)
        comm.send(t, 0)
    return {}
