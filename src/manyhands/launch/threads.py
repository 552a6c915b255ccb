"""Engine `threads`: ranks as threads of this process, sharing memory (the papers' OpenMP row)."""

from dataclasses import replace
from typing import Any, final

from manyhands.comm.threads import ThreadComm, ThreadGroup
from manyhands.config import RunConfig
from manyhands.launch.base import Launcher, Observer, Worker, check_one_thread
from manyhands.launch.blas_threads.count import process_settings
from manyhands.launch.environment import check_alone
from manyhands.launch.in_process import LocalWatch, run_threads
from manyhands.launch.signals.interrupt import stop_on_signal
from manyhands.launch.signals.waiting import StopMonitor
from manyhands.machine import facts
from manyhands.sync.base import num_ranks
from manyhands.training.job import Job


@final
class ThreadsLauncher(Launcher):
    """Threads with their own gradients and copies of the weights."""

    features = ThreadComm.features

    def check(self, config: RunConfig) -> None:
        check_alone(config.engine)
        check_one_thread(config)

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        size, job = num_ranks(job.config), replace(job, same_data=job.data is not None)
        group = ThreadGroup(size)
        comms = [ThreadComm(group, rank) for rank in range(size)]
        with process_settings(job.config, job.config.workers, facts.cores()), stop_on_signal() as stop:
            watches = [LocalWatch(stop, observe) for _ in comms]
            workers = watches[: job.config.size]
            monitor = StopMonitor(lambda: [watch.step for watch in workers], job.run.checkpoints, stop)
            return run_threads(worker, job, comms, watches, lambda _: group.abort(), monitor.look_or_give_up)
