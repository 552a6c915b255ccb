"""The time of a step by events: every virtual rank runs the strategy's own code on parameters that hold no memory."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch

from manyhands import sync
from manyhands.comm import Comm
from manyhands.comm.sim import SimComm, SimWorld
from manyhands.comm.traced import TracedComm
from manyhands.lab.sim_codec import use_times
from manyhands.model.machine import CalibratedMachine
from manyhands.record.simulation import CodecTimes
from manyhands.replica.meta import MetaReplica, Outline, Paces
from manyhands.sync import Sync

WARM_UP = 0.1
"""Share of the steps that are not counted: before them ranks that wait for nobody are still in step."""
MOST_PERIODS = 4
"""How many times as many steps as asked for may be made so that periods and epochs end together."""


@dataclass(frozen=True)
class Scene:
    """A strategy, and what it is to exchange."""

    sync: str
    workers: int
    outline: Outline
    steps_per_epoch: int
    codec: CodecTimes | None = None
    """Of a strategy that has one."""


@dataclass(frozen=True)
class StepSplit:
    """Where the time of a step goes, on average over steps and workers."""

    compute_s: float
    serial_s: float
    comm_s: float
    """Of each call, what it took the rank that waited least."""
    wait_s: float

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.compute_s + self.serial_s + self.comm_s + self.wait_s


@dataclass
class RankLog:
    """What one worker noted of the steps that count."""

    begun_s: float = 0.0
    ended_s: float = 0.0
    compute_s: float = 0.0
    met_s: float = 0.0
    """Waiting when the workers told each other how they were doing."""
    epoch_end_s: float = 0.0
    calls_s: tuple[float, ...] = ()
    """Of each collective call, and of all messages of a step together."""
    ends_s: list[float] = field(default_factory=list)
    """When each step had ended."""


def simulate_steps(scene: Scene, machine: CalibratedMachine, steps: int) -> StepSplit:
    """Let every rank make so many steps, or a few more, so that what is done once in several is counted rightly."""
    strategy = sync.make(scene.sync)
    in_a_cycle = cycle(strategy, scene.steps_per_epoch, steps)
    counted, warm_up = _whole(steps, in_a_cycle), _whole(math.ceil(WARM_UP * steps), in_a_cycle)
    world = SimWorld(scene.workers + strategy.num_servers(), machine)
    usual_s = usual_step_s(machine)

    def work(comm: SimComm) -> RankLog:
        own = copy.deepcopy(strategy)  # to look it up a thousand times takes seconds
        rank = VirtualRank(scene, own, paces_of(machine, comm.rank, scene.workers), comm, comm.advance, usual_s)
        return rank.run(warm_up, counted)

    logs: list[RankLog] = world.run(work)
    return split_of(logs[: scene.workers], counted, scene.steps_per_epoch)


def usual_step_s(machine: CalibratedMachine) -> float:
    """Return about what a step takes, without its exchange."""
    return float(machine.compute.expected_s(1)) / machine.cluster.core_speed


def cycle(strategy: Sync, steps_per_epoch: int, steps: int) -> int:
    """Return after how many steps a strategy begins anew: its period, and an epoch if so many steps have some."""
    period = period_of(strategy)
    both = math.lcm(period, steps_per_epoch)
    return both if steps_per_epoch <= steps and both <= MOST_PERIODS * max(steps, period) else period


def period_of(strategy: Sync) -> int:
    """Return how many steps there are to an exchange."""
    return int(getattr(strategy, "period", 1))


def meet_every(strategy: Sync, step_s: float) -> float:
    """Return the steps between two beats, when the workers of a real run tell each other how they are doing."""
    return max(1.0, strategy.meet_s() / step_s if step_s else math.inf)


def paces_of(machine: CalibratedMachine, rank: int, workers: int) -> Paces:
    """Return what things take a rank; a server computes nothing but its updates."""
    slowness = float(machine.cluster.slowness(rank + 1)[rank])
    return Paces(
        lambda: machine.step_s(rank) if rank < workers else 0.0,
        lambda share: share * machine.update_s(rank),
        lambda: machine.loop_s(rank) if rank < workers else 0.0,
        machine.touch_s_per_byte * slowness,
    )


@final
class VirtualRank:
    """One rank's part, as `training` has it but for data, losses and what is written."""

    def __init__(
        self,
        scene: Scene,
        strategy: Sync,
        paces: Paces,
        comm: Comm,
        advance: Callable[[float], None],
        usual_s: float,
    ) -> None:
        """Be a rank of `comm`, whose clock `advance` lets run; a step takes about `usual_s`."""
        self._scene, self._comm, self._traced = scene, comm, TracedComm(comm)
        self._strategy, self._advance, self._loop_s = strategy, advance, paces.loop_s
        self._replica = MetaReplica(scene.outline, advance, paces)
        use_times(self._strategy, scene.codec, advance, self._replica.charge)
        self._interval = meet_every(self._strategy, usual_s)
        self._log = RankLog()

    def run(self, warm_up: int, steps: int) -> RankLog:
        """Make the steps, and return what was noted of those after the warm-up."""
        scene, comm, traced, log = self._scene, self._comm, self._traced, self._log
        workers = comm.split(int(comm.rank >= scene.workers)) if self._strategy.num_servers() else comm
        self._strategy.start(self._replica, traced)
        if comm.rank >= scene.workers:
            self._strategy.serve(self._replica, traced)
            return log
        for step in range(warm_up + steps):
            if step == warm_up:
                self._forget()
            self._step(step, workers)
            log.ends_s.append(comm.clock())
        log.ended_s, log.calls_s = comm.clock(), tuple(traced.collective_s)
        if scene.steps_per_epoch > warm_up + steps:
            workers.barrier()
            log.epoch_end_s = self._end_epoch()
        self._strategy.finish(self._replica, traced)
        return log

    def _step(self, step: int, workers: Comm) -> None:
        comm, log = self._comm, self._log
        begun = comm.clock()
        self._replica.forward_backward()
        log.compute_s += comm.clock() - begun
        self._strategy.step(self._replica, self._traced, step)
        ends_epoch = (step + 1) % self._scene.steps_per_epoch == 0
        if ends_epoch:
            self._end_epoch()
        self._advance(self._loop_s())
        self._traced.collective_s.append(self._traced.p2p_s)
        self._traced.p2p_s = 0.0
        if ends_epoch or int((step + 1) / self._interval) > int(step / self._interval):
            self._meet(workers)

    def _meet(self, workers: Comm) -> None:
        begun = self._comm.clock()
        in_a_row = 2 + 2 * math.ceil(min(self._interval, self._scene.steps_per_epoch))
        workers.all_gather(torch.empty(in_a_row, dtype=torch.float64, device="meta"))
        self._log.met_s += self._comm.clock() - begun

    def _end_epoch(self) -> float:
        begun = self._comm.clock()
        self._strategy.end_epoch(self._replica, self._traced)
        return self._comm.clock() - begun

    def _forget(self) -> None:
        self._traced.forget()
        self._log.begun_s, self._log.compute_s, self._log.met_s = self._comm.clock(), 0.0, 0.0
        self._log.ends_s.clear()


def split_of(logs: Sequence[RankLog], steps: int, steps_per_epoch: int) -> StepSplit:
    """Share out the time as a real run's beat does: of each call, the shortest duration is what it took."""
    calls = np.array([log.calls_s for log in logs])
    comm_s = float(calls.min(axis=0).sum())
    wait_s = float(calls.sum()) / len(logs) - comm_s + _mean([log.met_s for log in logs])
    compute_s = _mean([log.compute_s for log in logs])
    train_s = _mean([log.ended_s - log.begun_s for log in logs])
    epoch_end_s = _mean([log.epoch_end_s for log in logs])
    serial_s = max(0.0, train_s - compute_s - comm_s - wait_s)
    return StepSplit(
        compute_s / steps, serial_s / steps, comm_s / steps + epoch_end_s / steps_per_epoch, max(0.0, wait_s) / steps
    )


def _whole(steps: int, in_a_cycle: int) -> int:
    return max(1, math.ceil(steps / in_a_cycle)) * in_a_cycle


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
