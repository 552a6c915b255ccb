"""What the ranks of `test_ray.py` do: actors import it by name."""

import os
import shutil
import signal
import sys
from typing import Any

import torch

from manyhands.comm import Comm
from manyhands.record.run import Pulse
from manyhands.training.job import Job
from manyhands.training.watch import Watch

PULSE = {"step": 1, "steps": 2, "epoch": 1, "epochs": 1, "loss": 0.5, "accuracy": None, "samples_per_s": 1.0}
TIMES = {"eta_s": 0.0, "compute_s": 0.0, "comm_s": 0.0, "wait_s": 0.0}


def tell(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Tell what this rank sees, after a sum over all ranks."""
    total = torch.tensor([comm.rank + 1])
    comm.all_reduce_(total)
    print(f"rank {comm.rank} prints")
    if comm.rank == 0:
        watch.pulse(Pulse.model_validate({**PULSE, **TIMES}))
    return {
        "rank": comm.rank,
        "size": comm.size,
        "sum": int(total),
        "threads": torch.get_num_threads(),
        "cwd": os.getcwd(),
        "path": sys.path,
        "pid": os.getpid(),
    }


def raise_in_the_middle(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Let rank 1 fail in step 3 while the other waits for it."""
    for step in range(5):
        watch.at(step)
        if comm.rank == 1 and step == 3:
            raise ZeroDivisionError("mine")
        comm.barrier()
    return {}


def fail_without_a_folder(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Let rank 1 fail, when the folder is gone in which it would say so, while the other waits for it."""
    comm.barrier()
    if comm.rank == 1:
        shutil.rmtree(job.run.path)
        raise ZeroDivisionError("mine")
    comm.barrier()
    return {}


def die(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Let rank 1 be killed in step 2, by the signal named in the job, while the other waits for it."""
    watch.at(2)
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.Signals[job.extra["signal"]])
    comm.barrier()
    return {}


def wait_for_stop(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Go on until somebody wants the run to end."""
    print("going on", flush=True)
    while not watch.stop_asked():
        comm.barrier()
    return {"stopped": True}
