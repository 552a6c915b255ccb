"""A hybrid run in which one thread fails while all others wait for messages, directly or not, that it will not send.

`python crossed.py OUT` runs it and prints who failed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from manyhands import launch
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.errors import RankFailed
from manyhands.record import RunDir, open_run
from manyhands.run import ignore
from manyhands.training import Job
from manyhands.watch import Watch


def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Let rank 1 fail; rank 0, in its process, waits for rank 3 of the other, which waits for rank 1."""
    watch.at(4)
    t = torch.zeros(1)
    if comm.rank == 1:
        raise ZeroDivisionError("mine")
    if comm.rank == 0:
        comm.recv(t, 3)
    if comm.rank == 3:
        comm.recv(t, 1)
        comm.send(t, 0)
    return {}


def main() -> None:
    """Launch it as the module that ranks can import."""
    import crossed

    config = make_config({"task": "mlp", "engine": "hybrid", "workers": 2, "threads": 2})
    run = RunDir(Path(sys.argv[1]) / "run")
    open_run(run, config)
    try:
        launch.make("hybrid").launch(crossed.worker, Job(config, run), ignore)
    except RankFailed as error:
        print(json.dumps({"rank": error.rank, "step": error.step, "cause": error.cause}))


if __name__ == "__main__":
    main()
