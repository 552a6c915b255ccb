"""When n workers end each of their steps: the strategy's own code on virtual ranks whose weights hold no memory."""

import math

import numpy as np

from manyhands import sync
from manyhands.comm.sim import Instant, Machine, SimComm, SimWorld
from manyhands.model.machine import CalibratedMachine
from manyhands.replica import Replica
from manyhands.replica.meta import Paces, outline_of
from manyhands.sync import Sync
from manyhands.training.plan import Plan
from manyhands.virtual.codec import measure_codec
from manyhands.virtual.events import RankLog, Scene, VirtualRank, paces_of, usual_step_s

ENOUGH = 20_000
"""Steps of single workers that are played; of a longer run, the rest is drawn from what these took."""


def scene_of(plan: Plan, replica: Replica) -> Scene:
    """Return what there is to exchange, where nobody has measured when parts of the gradients are final."""
    outline, strategy = outline_of(replica), sync.make(plan.config.sync)
    times = None if strategy.codec is None else measure_codec(strategy.codec, outline)
    return Scene(strategy, plan.config.size, outline, plan.steps_per_epoch, times)


def step_ends(scene: Scene, machine: Machine, steps: int, seed: int) -> list[float]:
    """Return the virtual seconds, from the first step on, after which the last worker had made each step."""
    if isinstance(machine, Instant):
        return [0.0] * steps
    in_a_cycle = _cycle(scene.strategy, scene.steps_per_epoch)
    num_cycles = math.ceil(ENOUGH / (scene.workers * in_a_cycle))
    took = np.diff(_play(scene, machine, min(steps, num_cycles * in_a_cycle)), prepend=0.0)
    missing = math.ceil((steps - len(took)) / in_a_cycle)
    drawn = np.random.default_rng(seed).integers(0, max(1, len(took) // in_a_cycle), missing)
    cycles = [took[i * in_a_cycle : (i + 1) * in_a_cycle] for i in drawn]
    ends: list[float] = np.cumsum(np.concatenate([took, *cycles])[:steps]).tolist()
    return ends


def _cycle(strategy: Sync, steps_per_epoch: int) -> int:
    """Return after how many steps a strategy begins anew."""
    heeds_epochs = type(strategy).end_epoch is not Sync.end_epoch
    return math.lcm(strategy.period, steps_per_epoch if heeds_epochs else 1)


def _play(scene: Scene, machine: Machine, steps: int) -> list[float]:
    usual_s = usual_step_s(machine) if isinstance(machine, CalibratedMachine) else 0.0

    def work(comm: SimComm) -> RankLog:
        return VirtualRank(scene, _paces(scene, machine, comm), comm, comm.advance, usual_s).run(0, steps)

    logs: list[RankLog] = SimWorld(scene.workers + scene.strategy.num_servers(), machine).run(work)[: scene.workers]
    begun_s = min(log.begun_s for log in logs)
    return [max(ends) - begun_s for ends in zip(*(log.ends_s for log in logs), strict=True)]


def _paces(scene: Scene, machine: Machine, comm: SimComm) -> Paces:
    if isinstance(machine, CalibratedMachine):
        return paces_of(machine, comm.rank, scene.workers)
    if comm.rank >= scene.workers:
        return Paces(lambda: 0.0, lambda share: machine.step_s(comm.rank))
    return Paces(lambda: machine.step_s(comm.rank), lambda share: 0.0)
