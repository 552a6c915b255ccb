"""What engines of several processes share: start the ranks, or join those of the user's mpiexec, srun or torchrun."""

import os
import time
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from manyhands import tasks
from manyhands.comm.torch_ import PeerLost, TorchComm
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, RankFailed, check
from manyhands.launch.base import Launcher, Observer, Worker, check_one_thread
from manyhands.launch.environment import outer_world
from manyhands.launch.failures import agree_in_world
from manyhands.launch.guard.meeting import World, check_world, world_of
from manyhands.launch.guard.process import LOST_S, SAY_S
from manyhands.launch.guard.state import FailureKnown, Phase, own_state
from manyhands.launch.in_process import LocalWatch
from manyhands.launch.rank import run_process
from manyhands.launch.signals.interrupt import stop_on_signal, tell
from manyhands.launch.signals.waiting import LOOK_S, StopMonitor, repeating
from manyhands.launch.spawn import Starter, find_mpiexec, num_processes
from manyhands.launch.supervisor import supervise
from manyhands.record.status import note_failure
from manyhands.tasks.setup import device_of
from manyhands.training.job import Job

WATCH_S = 1.0
"""How often a server checks whether another rank has aborted."""
MISSES = 5
"""How many checks may fail before the server takes the process that keeps the store for gone."""


class ProcessLauncher(Launcher):
    """Joins the world that this process was started in, or starts one."""

    @property
    @abstractmethod
    def starter(self) -> Starter:
        """What starts the processes."""

    def check(self, config: RunConfig) -> None:
        if config.engine != "hybrid":
            check_one_thread(config)
        check_importable(config)
        outer = outer_world()
        if outer is None:
            if self.starter.engine == "mpi":
                find_mpiexec(config.mpiexec)
            return
        check(
            outer.engine == self.starter.engine,
            f"{outer.by} started {outer.size} processes, which engine {config.engine} cannot join; "
            f"use --engine {outer.engine}, or start it without {outer.by}",
        )
        servers = num_processes(config) - config.workers
        beside = f" and the sync has {servers} more for servers" if servers else ""
        started = f"{outer.by} started {outer.size} processes, but --workers is {config.workers}{beside}"
        check(num_processes(config) == outer.size, f"{started}; leave --workers out")

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        if outer_world():
            return join_world(world_of(self.starter.engine), worker, job, observe)
        return supervise(worker, job, observe, self.starter)


def check_importable(config: RunConfig) -> None:
    """Refuse a task that other processes cannot import."""
    check(
        config.task in tasks.names() or ".py" in config.task,
        "this engine starts new processes, which must import the task: "
        "give it a name at the top level of a file, or pass 'FILE.py:VARIABLE'",
    )


def join_world(comm: World, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
    """Run the worker as the rank that this process is; a failure here ends all ranks."""
    check_world(comm, num_processes(job.config))
    agree_in_world(comm, "")  # from here on, ranks fail by `report` alone
    state = own_state()
    state.phase = Phase.RUNNING
    if isinstance(comm, TorchComm):
        comm = comm.on(str(device_of(job.config, comm.rank)))

    def report(error: ManyhandsError) -> None:
        time.sleep(_delay(error, comm.rank))
        if not isinstance(error, PeerLost):
            note_failure(job.run, error)
        if not (isinstance(error, PeerLost) and isinstance(comm, TorchComm) and comm.aborted()):
            tell(f"manyhands: {error}")
        state.known = FailureKnown.USER
        time.sleep(SAY_S)

    with stop_on_signal(say=comm.rank == 0) as stop, _leaving_with_others(comm, job.config):
        watches = [LocalWatch(stop, observe) for _ in range(job.config.threads)]
        monitor = StopMonitor(lambda: [watches[0].step], job.run.checkpoints, stop)
        with repeating(monitor.look, LOOK_S) if comm.rank == 0 else nullcontext():
            return run_process(worker, job, comm, watches, report)


def _delay(error: ManyhandsError, rank: int) -> float:
    """Return how long to wait for a rank with the same error, or its cause: when it has reported, it ends this one."""
    if isinstance(error, RankFailed):
        return 0.0
    return (LOST_S if isinstance(error, PeerLost) else 0.0) + (SAY_S + 0.5 * min(rank, 4) if rank else 0.0)


def _leaving_with_others(comm: World, config: RunConfig) -> AbstractContextManager[None]:
    """End this process, if it is a server under torchrun, when another rank has aborted.

    A server waits for a message from anybody, so it does not notice that a rank leaves, and torchrun's SIGTERM must not
    end it: before a checkpoint, workers ask it for its state.
    """
    if not isinstance(comm, TorchComm) or comm.rank < config.workers:
        return nullcontext()
    misses = 0

    def watch() -> None:
        nonlocal misses
        misses = 0 if comm.reachable() else misses + 1
        if comm.aborted() or misses >= MISSES:
            own_state().known = FailureKnown.USER
            os._exit(1)

    return repeating(watch, WATCH_S)
