"""One rank of engine `ray`: a process of the cluster that is told, in JSON, what to do."""

import contextlib
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, final

from manyhands.comm.torch_ import address_of, connect, listen
from manyhands.launch.base import Worker, failure
from manyhands.launch.blas_threads.count import process_settings
from manyhands.launch.mailbox import LiveFolder, LiveWatch, failure_values, read_job, write_failure
from manyhands.launch.on_ray.cluster import load
from manyhands.launch.signals.interrupt import die_with_parent
from manyhands.machine import facts
from manyhands.record import write_atomically
from manyhands.tasks.setup import device_of

FAILURE = "failure"
"""The only key of what a rank returns that has failed."""


@final
class RankActor:
    """A rank in a process of its own; Ray makes an actor of it."""

    def place(self, live: str) -> str:
        """Return where this is, as JSON: node, address to meet at, cores, and whether it sees the live folder."""
        die_with_parent(signal.SIGKILL)  # a rank that waits for others would not see that Ray is gone
        ray = load()
        self._address = ray.util.get_node_ip_address()
        self._listener = listen(self._address)
        return json.dumps(
            {
                "node": ray.get_runtime_context().get_node_id(),
                "host": facts.hardware()["host"],
                "address": address_of(self._listener),
                "cores": sorted(facts.core_ids()),
                "sees_folder": Path(live).is_dir(),
            }
        )

    def run(self, text: str) -> str:
        """Do the job and return the result as JSON, or the failure, which the live folder tells sooner if it can."""
        order = json.loads(text)
        rank = order["rank"]
        job, worker_name = read_job(Path(order["job"]))
        folder = LiveFolder(job.run)
        _write_to(output_of(folder, rank))
        watch = LiveWatch(folder, rank)
        watch.stop_on_signals()
        result: dict[str, Any] | None = None
        try:
            os.chdir(order["folder"])  # paths in the config are relative to where the user is
            sys.path[:0] = order["path"]
            module, _, function = worker_name.partition(":")
            worker: Worker = getattr(importlib.import_module(module), function)
            with process_settings(job.config, order["ranks_here"], order["cores_here"]):
                comm = connect(
                    order["address"],
                    rank,
                    order["size"],
                    str(device_of(job.config, rank)),
                    self._listener if rank == 0 else None,
                    here=self._address,
                    interfaces=os.environ.get("GLOO_SOCKET_IFNAME", ""),
                )
                result = worker(comm, job, watch)
                write_atomically(folder.result(rank), json.dumps(result))  # where it outlives Ray
                comm.close()
        except BaseException as error:
            explained = failure(error, rank, watch.step)
            write_failure(folder, explained, rank)
            result = {FAILURE: failure_values(explained)}
        with contextlib.suppress(OSError):  # the disk may be full
            sys.stdout.flush()
            sys.stderr.flush()
        return json.dumps(result)


def output_of(folder: LiveFolder, rank: int) -> Path:
    """Return where a rank writes what it prints."""
    return folder.path / f"output-{rank}.txt"


def _write_to(path: Path) -> None:
    """Send all that this process prints to a file."""
    with open(path, "ab") as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
