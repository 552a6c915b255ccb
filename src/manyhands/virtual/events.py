"""The time of a step by events: every virtual rank runs the strategy's own code on parameters that hold no memory."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch

from manyhands.comm import Comm
from manyhands.comm.sim import SimComm, SimWorld
from manyhands.comm.traced import TracedComm
from manyhands.model.machine import CalibratedMachine
from manyhands.record.simulation import CodecTimes
from manyhands.replica.meta import MetaReplica, Outline, Paces
from manyhands.sync import Sync
from manyhands.training.meter import StepMeter, TimeSplit, exchange_and_waits, flush_every
from manyhands.training.step import Stepper
from manyhands.virtual.codec import TimedCodec

WARM_UP = 0.1
"""Share of the steps that are not counted: before them ranks that wait for nobody are still in step."""
NO_ROWS = slice(0, 0)
"""The batch of a virtual step."""
MOST_PERIODS = 4
"""How many times as many steps as asked for may be made so that periods and epochs end together."""


@dataclass(frozen=True)
class Scene:
    """A strategy, and what it is to exchange."""

    strategy: Sync
    """Not started; a rank runs a copy."""
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
        """Seconds of a whole step."""
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
    calls_s: list[float] = field(default_factory=list)
    """Of each collective call, and of all messages of a step together."""
    ends_s: list[float] = field(default_factory=list)
    """When each step had ended."""

    def take(self, meter: StepMeter) -> None:
        """Take over what the meter noted since its last flush."""
        self.compute_s += meter.shared_s
        self.calls_s += meter.traced.collective_s
        meter.clear()


def simulate_steps(scene: Scene, machine: CalibratedMachine, steps: int) -> StepSplit:
    """Let every rank make so many steps, or a few more, so that what is done once in several is counted rightly."""
    strategy = scene.strategy
    in_a_cycle = cycle(strategy, scene.steps_per_epoch, steps)
    counted, warm_up = _whole(steps, in_a_cycle), _whole(math.ceil(WARM_UP * steps), in_a_cycle)
    world = SimWorld(scene.workers + strategy.num_servers(), machine)
    usual_s = usual_step_s(machine)

    def work(comm: SimComm) -> RankLog:
        rank = VirtualRank(scene, paces_of(machine, comm.rank, scene.workers), comm, comm.advance, usual_s)
        return rank.run(warm_up, counted)

    logs: list[RankLog] = world.run(work)
    return split_of(logs[: scene.workers], counted, scene.steps_per_epoch)


def usual_step_s(machine: CalibratedMachine) -> float:
    """Return about what a step takes, without its exchange."""
    return float(machine.compute.expected_s(1)) / machine.cluster.core_speed


def cycle(strategy: Sync, steps_per_epoch: int, steps: int) -> int:
    """Return after how many steps a strategy begins anew: its period, and an epoch if so many steps have some."""
    period = strategy.period
    both = math.lcm(period, steps_per_epoch)
    return both if steps_per_epoch <= steps and both <= MOST_PERIODS * max(steps, period) else period


def meet_every(strategy: Sync, step_s: float) -> float:
    """Return the steps after which the workers of a real run flush their meters, where a step takes `step_s`."""
    return flush_every(strategy.meet_s(), step_s)


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
    """One rank of a run without its data, losses and files: it makes the same steps, and nothing is computed."""

    def __init__(
        self, scene: Scene, paces: Paces, comm: Comm, advance: Callable[[float], None], usual_s: float
    ) -> None:
        """Be a rank of `comm`, whose clock `advance` lets run; a step takes about `usual_s`."""
        self._scene, self._comm = scene, comm
        self._strategy, self._advance, self._loop_s = copy.deepcopy(scene.strategy), advance, paces.loop_s
        self._replica = MetaReplica(scene.outline, advance, paces)
        if scene.codec is not None:
            self._strategy.codec = TimedCodec(times=scene.codec, advance=advance, charge=self._replica.charge)
        self._flush_every = meet_every(self._strategy, usual_s)

    def run(self, warm_up: int, steps: int) -> RankLog:
        """Make the steps, and return what was noted of those after the warm-up."""
        comm, strategy, replica, traced = self._comm, self._strategy, self._replica, TracedComm(self._comm)
        log, steps_per_epoch = RankLog(), self._scene.steps_per_epoch
        workers = comm.split(int(comm.rank >= self._scene.workers)) if strategy.num_servers() else comm
        strategy.start(replica, traced)
        if comm.rank >= self._scene.workers:
            strategy.serve(replica, traced)
            return log
        meter = StepMeter(workers, traced, interval_s=strategy.meet_s(), every=self._flush_every)
        stepper = Stepper(replica, strategy, traced, meter, steps_per_epoch, lambda *_: replica.forward_backward())
        for step in range(warm_up + steps):
            if step == warm_up:
                traced.forget()
                meter.clear()
                log = RankLog(begun_s=comm.clock())
            due = stepper.step(NO_ROWS, step)
            self._advance(self._loop_s())
            if due or (step + 1) % steps_per_epoch == 0:
                begun_s = comm.clock()
                workers.all_gather(torch.empty(meter.row_length, dtype=torch.float64, device="meta"))
                log.met_s += comm.clock() - begun_s
                log.take(meter)
            log.ends_s.append(comm.clock())
        log.ended_s = comm.clock()
        log.take(meter)
        if steps_per_epoch > warm_up + steps:
            workers.barrier()
            begun_s = comm.clock()
            strategy.end_epoch(replica, traced)
            log.epoch_end_s = comm.clock() - begun_s
        strategy.finish(replica, traced)
        return log


def split_of(logs: Sequence[RankLog], steps: int, steps_per_epoch: int) -> StepSplit:
    """Share out the time of `steps` steps as the record of a real run does."""
    exchange_s, waits_s = exchange_and_waits(torch.tensor([log.calls_s for log in logs], dtype=torch.float64))
    parts = []
    for log, wait_s in zip(logs, waits_s, strict=True):
        train_s, wait_s = log.ended_s - log.begun_s, wait_s + log.met_s
        split = TimeSplit(steps=steps, train_s=train_s, shared_s=log.compute_s, comm_s=exchange_s, wait_s=wait_s)
        parts.append(split.per_step())
    compute_s, serial_s, comm_s, wait_s = np.mean(parts, axis=0).tolist()
    epoch_end_s = float(np.mean([log.epoch_end_s for log in logs]))
    return StepSplit(compute_s, serial_s, comm_s + epoch_end_s / steps_per_epoch, wait_s)


def _whole(steps: int, in_a_cycle: int) -> int:
    return max(1, math.ceil(steps / in_a_cycle)) * in_a_cycle
