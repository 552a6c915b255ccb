"""n virtual workers that take turns in the strategy's own code, for strategies that no `Course` covers."""

import math
from typing import Any, final

from manyhands.comm import Comm
from manyhands.comm.sim import Machine, SimComm, SimWorld
from manyhands.config import RunConfig
from manyhands.launch.base import failure
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.model.machine import CalibratedMachine
from manyhands.record.run import Pulse, RunDir, RunRecord
from manyhands.replica import Replica
from manyhands.run import Ready
from manyhands.sync import Sync
from manyhands.sync.base import num_ranks, settled
from manyhands.tasks import Task
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.plan import AT_END
from manyhands.virtual.scores import Evaluation, Scores


def take_turns(
    config: RunConfig, task: Task, ready: Ready, machine: Machine, run: RunDir, scores: Scores
) -> tuple[RunRecord, list[float]]:
    """Train on virtual ranks with the clocks of `machine`; return the record and the end of each step."""
    world, watches = SimWorld(num_ranks(config), machine), list[_Watch]()
    ends_s, num_ended = [0.0] * scores.plan.steps, [0] * scores.plan.steps

    def after_step(comm: Comm, replica: Replica, strategy: Sync, step: int) -> None:
        ends_s[step] = max(ends_s[step], comm.clock())
        num_ended[step] += 1
        is_last = num_ended[step] == config.size
        if step + 1 in scores.steps[:-1] and strategy.lockstep:
            with settled(strategy, replica, comm):
                if comm.rank == 0:
                    scores.take(replica.module, step + 1)
        elif step + 1 in scores.steps[:-1] and is_last:  # it has just received the servers' weights
            scores.take(replica.module, step + 1)
        if is_last:
            scores.report(step + 1, math.nan)

    # The run itself evaluates at its end only: a barrier for each evaluation would keep asynchronous workers together.
    quiet = config.model_copy(update=AT_END)
    job = Job(quiet, run, task=task, data=ready.data, read_s=ready.read_s, after_step=after_step)

    def work(comm: SimComm) -> dict[str, Any]:
        watch = _Watch(comm, machine, is_worker=comm.rank < config.size)
        watches.append(watch)
        try:
            return train_rank(comm, job, watch)
        except Exception as error:
            raise failure(error, comm.rank, watch.step) from error

    with process_settings(config, 1, facts.cores()):
        record = RunRecord.model_validate(world.run(work)[0])
    scores.evaluations[record.steps] = Evaluation(record.test_loss, record.test_accuracy)
    begun_s = min(watch.begun_s for watch in watches)
    return record, [end_s - begun_s for end_s in ends_s]


@final
class _Watch:
    """Advances a rank's clock by the time of its compute; progress is shown by `Scores`, since seconds are virtual."""

    def __init__(self, comm: SimComm, machine: Machine, *, is_worker: bool) -> None:
        self._comm, self._machine, self._is_worker = comm, machine, is_worker
        self.step = -1
        self.begun_s = math.inf
        """When a worker began its first step."""

    def at(self, step: int) -> None:
        """Advance the clock by a worker's step or a server's update."""
        if self._is_worker and step == 0:
            self.begun_s = self._comm.clock()
        self.step = step
        rank, machine = self._comm.rank, self._machine
        self._comm.advance(machine.step_s(rank))
        if self._is_worker and isinstance(machine, CalibratedMachine):
            self._comm.advance(machine.loop_s(rank))

    def stop_asked(self) -> bool:
        """Return False: Ctrl-C ends all ranks at once, since they share a thread."""
        return False

    def pulse(self, pulse: Pulse) -> None:
        """Ignore a pulse of the run."""
