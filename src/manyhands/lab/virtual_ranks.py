"""n virtual workers that take turns with the strategy's own code, where nothing shorter gives their answer."""

import math
from typing import Any, NamedTuple, final

from manyhands.comm import Comm
from manyhands.comm.sim import Machine, SimComm
from manyhands.config import RunConfig
from manyhands.launch.base import Observer
from manyhands.launch.sim import SimLauncher
from manyhands.model.machine import CalibratedMachine
from manyhands.plan import Plan
from manyhands.record import Pulse, RunDir, RunRecord, open_run
from manyhands.run import Ready
from manyhands.tasks import Task
from manyhands.training import Job, train_rank
from manyhands.watch import Watch


class Turns(NamedTuple):
    """What the run gave."""

    record: RunRecord
    accuracies: dict[int, float]
    """Of each evaluation, by the steps made."""
    step_ends: list[float]
    """When the last worker had made each step, by the virtual clocks."""


def take_turns(config: RunConfig, task: Task, ready: Ready, machine: Machine, run: RunDir, observe: Observer) -> Turns:
    """Train on the engine `sim`, into the folder of this run."""
    plan = Plan(config, ready.data.train, 0, config.size)
    clocks, accuracies = _Clocks(plan.steps), dict[int, float]()

    def note(pulse: Pulse) -> None:
        observe(pulse)
        if pulse.accuracy is not None:  # that of the last evaluation before this step
            accuracies[_evaluated(pulse.step - 1, plan)] = pulse.accuracy

    def work(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        assert isinstance(comm, SimComm)
        at_work = comm.rank < config.size
        return train_rank(comm, job, _TimedWatch(watch, comm, machine, clocks) if at_work else watch)

    open_run(run, config)
    job = Job(config, run, task=task, data=ready.data, read_s=ready.read_s)
    record = RunRecord.model_validate(SimLauncher(machine).launch(work, job, note)[0])
    if record.status == "interrupted":
        raise KeyboardInterrupt
    return Turns(record, {**accuracies, record.steps: record.test_accuracy}, clocks.since_begun())


def _evaluated(step: int, plan: Plan) -> int:
    """Return after how many steps the last evaluation was when this step was made."""
    size = plan.steps_per_epoch * plan.config.eval_every
    return step // size * size


@final
class _Clocks:
    """What the workers' clocks showed when they began, and at the end of each step."""

    def __init__(self, steps: int) -> None:
        self._begun_s, self._ends_s = math.inf, [0.0] * steps

    def begin(self, now_s: float) -> None:
        """Note when a worker begins its first step."""
        self._begun_s = min(self._begun_s, now_s)

    def end(self, step: int, now_s: float) -> None:
        """Note when a worker has ended a step."""
        self._ends_s[step] = max(self._ends_s[step], now_s)

    def since_begun(self) -> list[float]:
        """Return the last worker's time for each step, from when the first began."""
        return [end - self._begun_s for end in self._ends_s]


@final
class _TimedWatch:
    """Looks at a worker's clock between its steps."""

    def __init__(self, inner: Watch, comm: SimComm, machine: Machine, clocks: _Clocks) -> None:
        self._inner, self._comm, self._machine, self._clocks = inner, comm, machine, clocks
        self._step, self._noted = -1, -1

    def at(self, step: int) -> None:
        """Note the end of the step before, and let the time pass that this one takes to compute."""
        self._note() if step else self._clocks.begin(self._comm.clock())
        self._step = step
        self._inner.at(step)
        if isinstance(self._machine, CalibratedMachine):
            self._comm.advance(self._machine.update_s(self._comm.rank))

    def stop_asked(self) -> bool:
        """Note the end of the step, after which workers ask this before they meet."""
        self._note()
        return self._inner.stop_asked()

    def pulse(self, pulse: Pulse) -> None:
        """Pass it on."""
        self._inner.pulse(pulse)

    def _note(self) -> None:
        if self._noted < self._step:
            self._noted = self._step
            self._clocks.end(self._step, self._comm.clock())
