"""Engine `sim`: virtual workers that take turns in this thread; on their clocks nothing takes any time."""

from dataclasses import replace
from typing import Any, final

from manyhands.comm.sim import Instant, SimComm, SimWorld
from manyhands.config import RunConfig
from manyhands.launch.base import Launcher, Observer, Worker, check_one_thread, failure
from manyhands.launch.blas_threads.count import process_settings
from manyhands.launch.environment import check_alone
from manyhands.launch.in_process import LocalWatch
from manyhands.launch.signals.interrupt import stop_on_signal
from manyhands.machine import facts
from manyhands.sync.base import num_ranks
from manyhands.training.job import Job


@final
class SimLauncher(Launcher):
    """Any number of workers on one machine, for the answer alone."""

    features = SimComm.features

    def check(self, config: RunConfig) -> None:
        check_alone(config.engine)
        check_one_thread(config)

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        job = replace(job, same_data=job.data is not None)
        with process_settings(job.config, 1, facts.cores()), stop_on_signal() as stop:

            def work(comm: SimComm) -> dict[str, Any]:
                watch = LocalWatch(stop, observe)
                try:
                    return worker(comm, job, watch)
                except Exception as error:
                    raise failure(error, comm.rank, watch.step) from error

            return SimWorld(num_ranks(job.config), Instant()).run(work)
