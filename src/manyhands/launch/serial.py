"""Engine `serial`: one rank, in this process."""

from typing import Any, final

from manyhands.comm.self_ import SelfComm
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.launch.base import Launcher, Observer, Worker
from manyhands.launch.blas_threads.count import process_settings
from manyhands.launch.environment import check_alone
from manyhands.launch.in_process import LocalWatch, run_threads
from manyhands.launch.signals.interrupt import stop_on_signal
from manyhands.launch.signals.waiting import LOOK_S, StopMonitor, repeating
from manyhands.machine import facts
from manyhands.training.job import Job


@final
class SerialLauncher(Launcher):
    """One worker alone: the answer that all others must give."""

    features = SelfComm.features

    def check(self, config: RunConfig) -> None:
        check_alone(config.engine)
        check(config.size == 1, f"engine serial has one worker, got {config.size}; use --engine threads, mpi or hybrid")

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        with process_settings(job.config, 1, facts.cores()), stop_on_signal() as stop:
            watch = LocalWatch(stop, observe)
            monitor = StopMonitor(lambda: [watch.step], job.run.checkpoints, stop)
            with repeating(monitor.look, LOOK_S):  # to give up is left to the user
                return run_threads(worker, job, [SelfComm()], [watch], on_failure=lambda _: None)
