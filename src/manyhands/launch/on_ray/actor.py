"""One rank of engine `ray`: an actor of the cluster that receives its job as JSON."""

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import final

from manyhands.comm.torch_ import address_of, connect, listen
from manyhands.launch.base import failure
from manyhands.launch.blas_threads.count import process_settings
from manyhands.launch.mailbox import LiveFolder, LiveWatch, failure_values, read_job, stop_on_signals, write_failure
from manyhands.launch.on_ray.cluster import load
from manyhands.launch.rank import load_worker, share_of_host
from manyhands.machine.parent import die_with_parent
from manyhands.record.files import write_atomically
from manyhands.tasks.setup import device_of

FAILURE = "failure"
"""The only key of the result of a rank that has failed."""


@final
class RankActor:
    """A rank in a process of its own; Ray makes an actor of it."""

    def place(self, live: str) -> str:
        """Return, as JSON, this actor's host, the address to meet at, and whether it sees the live folder."""
        die_with_parent(signal.SIGKILL)  # a rank that waits for others would not notice that Ray is gone
        self._address = load().util.get_node_ip_address()
        self._listener = listen(self._address)
        place = {"host": socket.gethostname(), "address": address_of(self._listener)}
        return json.dumps({**place, "sees_folder": Path(live).is_dir()})

    def run(self, text: str) -> str:
        """Run the job's worker; return its result as JSON, or the failure, which is also in the live folder."""
        order = json.loads(text)
        rank = order["rank"]
        job, worker_name = read_job(Path(order["job"]))
        folder = LiveFolder(job.run)
        with open(folder.output(rank), "ab") as f:  # takes all that this process prints
            os.dup2(f.fileno(), 1)
            os.dup2(f.fileno(), 2)
        watch = LiveWatch(folder, rank, stop_on_signals())
        try:
            os.chdir(order["folder"])  # paths in the config are relative to where the user is
            sys.path[:0] = order["path"]
            worker = load_worker(worker_name)
            comm = connect(
                order["address"],
                rank,
                order["size"],
                str(device_of(job.config, rank)),
                self._listener if rank == 0 else None,
                here=self._address,
                interfaces=os.environ.get("GLOO_SOCKET_IFNAME", ""),
            )
            node = load().get_runtime_context().get_node_id()  # hosts may have equal names
            with process_settings(job.config, *share_of_host(comm, job.config.workers, node)):
                result = worker(comm, job, watch)
            write_atomically(folder.result(rank), json.dumps(result))  # where it outlives Ray
            comm.close()
        except BaseException as error:
            explained = failure(error, rank, watch.step)
            write_failure(folder.failure(rank), explained)
            result = {FAILURE: failure_values(explained)}
        with contextlib.suppress(OSError):  # the disk may be full
            sys.stdout.flush()
            sys.stderr.flush()
        return json.dumps(result)
