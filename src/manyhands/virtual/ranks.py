"""n virtual workers that take turns with the strategy's own code, where nothing shorter gives their answer."""

import math
from typing import Any, NamedTuple, final

from manyhands.comm import Comm
from manyhands.comm.sim import Machine, SimComm, SimWorld
from manyhands.config import RunConfig
from manyhands.launch.base import failure
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.model.machine import CalibratedMachine
from manyhands.record import Pulse, RunDir, RunRecord
from manyhands.replica import Replica
from manyhands.run import Ready
from manyhands.sync import Sync
from manyhands.sync.base import num_ranks, settled
from manyhands.tasks import Task
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.plan import NEVER
from manyhands.virtual.scores import Evaluation, Scores


class RanksResult(NamedTuple):
    """What the run gave."""

    record: RunRecord
    step_ends: list[float]
    """When the last worker had made each step, by the virtual clocks."""


def take_turns(
    config: RunConfig, task: Task, ready: Ready, machine: Machine, run: RunDir, scores: Scores
) -> RanksResult:
    """Train on virtual ranks with the clocks of this machine, into the folder of this run."""
    clocks, world = _Clocks(scores.plan.steps), SimWorld(num_ranks(config), machine)

    def after_step(comm: Comm, replica: Replica, strategy: Sync, step: int) -> None:
        is_last = clocks.end(step, comm.clock()) == config.size
        if step + 1 in scores.steps[:-1]:
            _evaluate(comm, replica, strategy, step + 1, scores, is_last=is_last)
        if is_last:
            scores.tell(step + 1, math.nan)

    # The run itself evaluates at its end alone: a meeting for each evaluation would keep asynchronous workers together.
    quiet = config.model_copy(update={"eval_every": NEVER})
    job = Job(quiet, run, task=task, data=ready.data, read_s=ready.read_s, after_step=after_step)

    def work(comm: SimComm) -> dict[str, Any]:
        watch = _Watch(comm, machine, clocks, at_work=comm.rank < config.size)
        try:
            return train_rank(comm, job, watch)
        except Exception as error:
            raise failure(error, comm.rank, watch.step) from error

    with process_settings(config, 1, facts.cores()):
        record = RunRecord.model_validate(world.run(work)[0])
    scores.found[record.steps] = Evaluation(record.test_loss, record.test_accuracy)
    return RanksResult(record, clocks.since_begun())


def _evaluate(comm: Comm, replica: Replica, strategy: Sync, step: int, scores: Scores, *, is_last: bool) -> None:
    if strategy.lockstep:
        with settled(strategy, replica, comm):
            if comm.rank == 0:
                scores.take(replica.module, step)
    elif is_last:  # whose weights the servers have just sent it
        scores.take(replica.module, step)


@final
class _Clocks:
    """What the workers' clocks showed when they began, and at the end of each step."""

    def __init__(self, steps: int) -> None:
        self._begun_s, self._ends_s, self._num_ended = math.inf, [0.0] * steps, [0] * steps

    def begin(self, now_s: float) -> None:
        """Note when a worker begins its first step."""
        self._begun_s = min(self._begun_s, now_s)

    def end(self, step: int, now_s: float) -> int:
        """Note when a worker has ended a step; return how many have."""
        self._ends_s[step] = max(self._ends_s[step], now_s)
        self._num_ended[step] += 1
        return self._num_ended[step]

    def since_begun(self) -> list[float]:
        """Return the last worker's time for each step, from when the first began."""
        return [end - self._begun_s for end in self._ends_s]


@final
class _Watch:
    """Lets a rank's clock run while it computes."""

    def __init__(self, comm: SimComm, machine: Machine, clocks: _Clocks, *, at_work: bool) -> None:
        self._comm, self._machine, self._clocks, self._at_work = comm, machine, clocks, at_work
        self.step = -1

    def at(self, step: int) -> None:
        """Let the time pass that a worker's step or a server's update takes to compute."""
        if self._at_work and step == 0:
            self._clocks.begin(self._comm.clock())
        self.step = step
        rank, machine = self._comm.rank, self._machine
        self._comm.advance(machine.step_s(rank))
        if self._at_work and isinstance(machine, CalibratedMachine):
            self._comm.advance(machine.loop_s(rank))

    def stop_asked(self) -> bool:
        """Never: Ctrl-C ends all ranks at once, since they share a thread."""
        return False

    def pulse(self, pulse: Pulse) -> None:
        """Show nothing; the run's seconds are virtual."""
