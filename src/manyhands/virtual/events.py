"""Step times by discrete events: every virtual rank runs the strategy's code on parameters without memory."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch

from manyhands.comm import Comm
from manyhands.comm.sim import Instant, Machine, SimComm, SimWorld
from manyhands.comm.traced import TracedComm
from manyhands.model.machine import CalibratedMachine
from manyhands.record.simulation import CodecTimes
from manyhands.replica.meta import MetaReplica, Outline, Paces
from manyhands.sync import Sync
from manyhands.training.meter import StepMeter, TimeSplit, exchange_and_waits, flush_every
from manyhands.training.step import Stepper
from manyhands.virtual.codec import TimedCodec

WARM_UP = 0.1
"""Share of the steps that is not counted, since ranks without barriers first have to drift apart."""
MOST_PERIODS = 4
"""Bound on the steps simulated, relative to those requested, so that periods and epochs end together."""
ENOUGH = 20_000
"""Steps, summed over workers, that `step_ends` simulates; the rest of a longer run is resampled from them."""


@dataclass(frozen=True)
class Scene:
    """A strategy, and the gradients that it exchanges."""

    strategy: Sync
    """Not started: every rank runs a copy."""
    workers: int
    outline: Outline
    steps_per_epoch: int
    codec: CodecTimes | None = None
    """Times of the strategy's codec, if it has one."""


@dataclass(frozen=True)
class StepSplit:
    """Where the time of a step goes, on average over steps and workers."""

    compute_s: float
    serial_s: float
    comm_s: float
    """Duration of each call on the rank that waited least in it."""
    wait_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a whole step."""
        return self.compute_s + self.serial_s + self.comm_s + self.wait_s


@dataclass
class RankLog:
    """The times of one worker's steps after the warm-up."""

    begun_s: float = 0.0
    ended_s: float = 0.0
    compute_s: float = 0.0
    met_s: float = 0.0
    """Time in the gathers that flush the meters."""
    epoch_end_s: float = 0.0
    calls_s: list[float] = field(default_factory=list)
    """Durations of each collective call, and of all messages of each step together."""
    ends_s: list[float] = field(default_factory=list)
    """When each step ended."""

    def take(self, meter: StepMeter) -> None:
        """Move the times since the last flush from the meter to this log."""
        self.compute_s += meter.shared_s
        self.calls_s += meter.traced.collective_s
        meter.clear()


def simulate_steps(scene: Scene, machine: CalibratedMachine, steps: int) -> StepSplit:
    """Simulate at least `steps` steps on every rank, rounded up to whole cycles of the strategy."""
    in_a_cycle = cycle(scene.strategy, scene.steps_per_epoch, steps)
    counted, warm_up = (max(1, math.ceil(num / in_a_cycle)) * in_a_cycle for num in (steps, math.ceil(WARM_UP * steps)))
    return split_of(_run_ranks(scene, machine, warm_up, counted), counted, scene.steps_per_epoch)


def step_ends(scene: Scene, machine: Machine, steps: int, seed: int) -> list[float]:
    """Return the virtual time from the first step's start until the last worker has finished each step."""
    if isinstance(machine, Instant):
        return [0.0] * steps
    heeds_epochs = type(scene.strategy).end_epoch is not Sync.end_epoch
    in_a_cycle = math.lcm(scene.strategy.period, scene.steps_per_epoch if heeds_epochs else 1)
    num_cycles = math.ceil(ENOUGH / (scene.workers * in_a_cycle))
    logs = _run_ranks(scene, machine, 0, min(steps, num_cycles * in_a_cycle))
    begun_s = min(log.begun_s for log in logs)
    last_s = [max(ends) - begun_s for ends in zip(*(log.ends_s for log in logs), strict=True)]
    took = np.diff(last_s, prepend=0.0)
    missing = math.ceil((steps - len(took)) / in_a_cycle)
    drawn = np.random.default_rng(seed).integers(0, max(1, len(took) // in_a_cycle), missing)
    cycles = [took[i * in_a_cycle : (i + 1) * in_a_cycle] for i in drawn]
    ends: list[float] = np.cumsum(np.concatenate([took, *cycles])[:steps]).tolist()
    return ends


def cycle(strategy: Sync, steps_per_epoch: int, steps: int) -> int:
    """Return the steps after which a strategy repeats: its period, and whole epochs if `steps` hold at least one."""
    period = strategy.period
    both = math.lcm(period, steps_per_epoch)
    return both if steps_per_epoch <= steps and both <= MOST_PERIODS * max(steps, period) else period


def _run_ranks(scene: Scene, machine: Machine, warm_up: int, steps: int) -> list[RankLog]:
    """Run all ranks on `machine`; return the logs of the workers."""
    usual_s = machine.usual_step_s if isinstance(machine, CalibratedMachine) else 0.0

    def work(comm: SimComm) -> RankLog:
        paces = _paces_of(machine, comm.rank, is_worker=comm.rank < scene.workers)
        return VirtualRank(scene, paces, comm, comm.advance, usual_s).run(warm_up, steps)

    logs: list[RankLog] = SimWorld(scene.workers + scene.strategy.num_servers(), machine).run(work)
    return logs[: scene.workers]


def _paces_of(machine: Machine, rank: int, *, is_worker: bool) -> Paces:
    """Return the compute times of a rank; a server computes nothing but its updates."""
    if not isinstance(machine, CalibratedMachine):
        if is_worker:
            return Paces(lambda: machine.step_s(rank), lambda share: 0.0)
        return Paces(lambda: 0.0, lambda share: machine.step_s(rank))
    return Paces(
        lambda: machine.step_s(rank) if is_worker else 0.0,
        lambda share: share * machine.update_s(rank),
        lambda: machine.loop_s(rank) if is_worker else 0.0,
        machine.touch_s_per_byte * float(machine.cluster.slowness(rank + 1)[rank]),
    )


@final
class VirtualRank:
    """One rank of a run without data, losses and files: it takes the same steps, and computes nothing."""

    def __init__(
        self, scene: Scene, paces: Paces, comm: Comm, advance: Callable[[float], None], usual_s: float
    ) -> None:
        """Set up a rank of `comm`, whose clock `advance` moves on; `usual_s` is the approximate time of a step."""
        self._scene, self._comm = scene, comm
        self._strategy, self._advance, self._loop_s = copy.deepcopy(scene.strategy), advance, paces.loop_s
        self._replica = MetaReplica(scene.outline, advance, paces)
        if scene.codec is not None:
            self._strategy.codec = TimedCodec(times=scene.codec, advance=advance, charge=self._replica.charge)
        self._flush_every = flush_every(self._strategy.meet_s(), usual_s)

    def run(self, warm_up: int, steps: int) -> RankLog:
        """Take `warm_up + steps` steps; return the log of the last `steps`."""
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
            due = stepper.step(slice(0, 0), step)
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
    """Split the time of `steps` steps as the record of a real run does."""
    exchange_s, waits_s = exchange_and_waits(torch.tensor([log.calls_s for log in logs], dtype=torch.float64))
    parts = []
    for log, wait_s in zip(logs, waits_s, strict=True):
        train_s, wait_s = log.ended_s - log.begun_s, wait_s + log.met_s
        split = TimeSplit(steps=steps, train_s=train_s, shared_s=log.compute_s, comm_s=exchange_s, wait_s=wait_s)
        parts.append(split.per_step())
    compute_s, serial_s, comm_s, wait_s = np.mean(parts, axis=0).tolist()
    epoch_end_s = float(np.mean([log.epoch_end_s for log in logs]))
    return StepSplit(compute_s, serial_s, comm_s + epoch_end_s / steps_per_epoch, wait_s)
