"""Engine `sim`: virtual workers that take turns in this thread, each with a clock of its own."""

import threading
from dataclasses import replace
from typing import Any, final

from manyhands import facts
from manyhands.comm.sim import Instant, Machine, SimComm, SimWorld
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.launch.base import Launcher, Observer, Worker, failure
from manyhands.launch.cores import process_settings
from manyhands.launch.environment import check_alone
from manyhands.launch.interrupt import stop_on_signal
from manyhands.record import Pulse
from manyhands.sync.base import num_ranks
from manyhands.training import Job


@final
class SimLauncher(Launcher):
    """As many workers as you like on one machine; their times are those of the machine that is simulated."""

    features = SimComm.features

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Instant()

    def check(self, config: RunConfig) -> None:
        """Allow any number of workers of one thread each."""
        check_alone(config.engine)
        hint = f"say --workers {config.threads}"
        check(config.threads == 1, f"--threads belongs to engine hybrid; {hint}")

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        """Run the worker once per virtual rank."""
        world = SimWorld(num_ranks(job.config), self._machine)
        job = replace(job, same_data=job.data is not None)
        with process_settings(job.config, 1, facts.cores()), stop_on_signal() as stop:

            def work(comm: SimComm) -> dict[str, Any]:
                watch = SimWatch(comm, self._machine, stop, observe)
                try:
                    return worker(comm, job, watch)
                except Exception as error:
                    raise failure(error, comm.rank, watch.step) from error

            return world.run(work)


@final
class SimWatch:
    """Looks after one virtual rank, and lets its clock run."""

    def __init__(self, comm: SimComm, machine: Machine, stop: threading.Event, observe: Observer) -> None:
        self._comm, self._machine, self._stop, self._observe = comm, machine, stop, observe
        self.step = -1

    def at(self, step: int) -> None:
        """Remember the step, and let the time pass that it takes to compute."""
        self.step = step
        self._comm.advance(self._machine.step_s(self._comm.rank))

    def stop_asked(self) -> bool:
        """Tell whether Ctrl-C was pressed."""
        return self._stop.is_set()

    def pulse(self, pulse: Pulse) -> None:
        """Pass it on to whoever draws it."""
        self._observe(pulse)
