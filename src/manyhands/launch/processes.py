"""Ranks as processes: started by us, or by the user's own mpiexec, srun or torchrun."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from manyhands import tasks
from manyhands.comm.torch_ import PeerLost, TorchComm, text_row
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, RankFailed, check
from manyhands.launch.base import Launcher, Observer, Worker
from manyhands.launch.environment import outer_world
from manyhands.launch.interrupt import stop_on_signal
from manyhands.launch.local import LocalWatch
from manyhands.launch.rank import World, check_world, run_process
from manyhands.launch.starters import Starter, num_processes
from manyhands.launch.supervisor import supervise
from manyhands.tasks.setup import device_of
from manyhands.training import Job

TEXT_BYTES = 1024
WATCH_S = 1.0
"""How often a server asks whether another rank has aborted."""


class ProcessLauncher(Launcher):
    """Joins the world this process was started in, or starts one."""

    starter: ClassVar[Starter]
    """What starts the processes."""

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        """Join the processes that are there, or start them."""
        if outer_world():
            return join_world(self.starter.world(), worker, job, observe)
        return supervise(worker, job, observe, self.starter)

    def agree(self, text: str) -> str:
        """Return rank 0's text."""
        return agree_in_world(self.starter.world(), text) if outer_world() else text

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, or the supervisor."""
        outer = outer_world()
        return outer is None or outer.rank == 0


def check_importable(config: RunConfig) -> None:
    """Refuse a task that only this process has."""
    check(
        config.task in tasks.names() or ".py" in config.task,
        "this engine starts new processes, which must import the task: "
        "give it a name at the top level of a file, or pass 'FILE.py:VARIABLE'",
    )


def check_processes(config: RunConfig, starter: Starter) -> None:
    """Refuse what other processes could not do: import the task, or be as many as nobody started."""
    check_importable(config)
    outer = outer_world()
    if outer is None:
        starter.check(config)
        return
    check(
        outer.engine == starter.engine,
        f"{outer.by} started {outer.size} processes, which engine {config.engine} cannot join; "
        f"use --engine {outer.engine}, or start it without {outer.by}",
    )
    servers = num_processes(config) - config.workers
    beside = f" and the sync has {servers} more for servers" if servers else ""
    check(
        num_processes(config) == outer.size,
        f"{outer.by} started {outer.size} processes, but --workers is {config.workers}{beside}; leave --workers out",
    )


def agree_in_world(comm: World, text: str) -> str:
    """Broadcast rank 0's text."""
    outer = outer_world()
    assert outer is not None
    check_world(comm, outer.size)
    assert len(text.encode()) <= TEXT_BYTES
    row = text_row(text, TEXT_BYTES)
    comm.broadcast_(row)
    return bytes(row.tolist()).decode().strip()


def join_world(comm: World, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
    """Run the worker as the rank this process is; a failure here ends all ranks."""
    check_world(comm, num_processes(job.config))
    if isinstance(comm, TorchComm):
        comm = comm.on(str(device_of(job.config, comm.rank)))

    def report(error: ManyhandsError) -> None:
        if isinstance(error, PeerLost) or (comm.rank != 0 and not isinstance(error, RankFailed)):
            time.sleep(1)  # another rank has the same to say, or more, and must not be ended before it has
        if comm.rank == 0 or isinstance(error, RankFailed):
            print(f"manyhands: {error}", file=sys.stderr)

    with stop_on_signal(say=comm.rank == 0) as stop, _leaving_with_others(comm, job.config):
        return run_process(worker, job, comm, lambda _: LocalWatch(stop, observe), report)


@contextmanager
def _leaving_with_others(comm: World, config: RunConfig) -> Iterator[None]:
    """End this process when another rank of torchrun's has aborted, if it is a server.

    A server waits for anybody, so it does not see one leave, and torchrun's SIGTERM must not end it: before a
    checkpoint, workers ask it for its state.
    """
    if not isinstance(comm, TorchComm) or comm.rank < config.workers:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            if comm.aborted():
                os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
