"""When n workers end each of their steps: the strategy's own code on virtual ranks whose weights hold no memory."""

import copy
import math

import numpy as np

from manyhands import sync
from manyhands.comm.sim import Instant, Machine, SimComm, SimWorld
from manyhands.lab.sim_codec import codec_of, measure_codec, use_times
from manyhands.lab.sim_events import Scene, paces_of
from manyhands.model.machine import CalibratedMachine
from manyhands.plan import Plan
from manyhands.replica import Replica
from manyhands.replica.meta import MetaReplica, Paces, outline_of
from manyhands.sync import Sync

ENOUGH = 20_000
"""Steps of single workers that are played; of a longer run, the rest is drawn from what these took."""


def scene_of(plan: Plan, replica: Replica) -> Scene:
    """Return what there is to exchange, where nobody has measured when parts of the gradients are final."""
    outline, spec = outline_of(replica), plan.config.sync
    codec = codec_of(sync.make(spec))
    times = None if codec is None else measure_codec(codec, outline)
    return Scene(spec, plan.config.size, outline, plan.steps_per_epoch, times)


def step_ends(scene: Scene, machine: Machine, steps: int, seed: int) -> list[float]:
    """Return the virtual seconds, from the first step on, after which the last worker had made each step."""
    if isinstance(machine, Instant):
        return [0.0] * steps
    in_a_cycle = _cycle(sync.make(scene.sync), scene.steps_per_epoch)
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
    return math.lcm(int(getattr(strategy, "period", 1)), steps_per_epoch if heeds_epochs else 1)


def _play(scene: Scene, machine: Machine, steps: int) -> list[float]:
    strategy = sync.make(scene.sync)
    begun_s, ends_s = [math.inf], [0.0] * steps

    def work(comm: SimComm) -> None:
        own, replica = copy.deepcopy(strategy), MetaReplica(scene.outline, comm.advance, _paces(scene, machine, comm))
        use_times(own, scene.codec, comm.advance, replica.charge)
        own.start(replica, comm)
        if comm.rank >= scene.workers:
            own.serve(replica, comm)
            return
        begun_s[0] = min(begun_s[0], comm.clock())
        for step in range(steps):
            replica.forward_backward()
            own.step(replica, comm, step)
            if (step + 1) % scene.steps_per_epoch == 0:
                own.end_epoch(replica, comm)
            ends_s[step] = max(ends_s[step], comm.clock())
        own.finish(replica, comm)

    SimWorld(scene.workers + strategy.num_servers(), machine).run(work)
    return [end_s - begun_s[0] for end_s in ends_s]


def _paces(scene: Scene, machine: Machine, comm: SimComm) -> Paces:
    if isinstance(machine, CalibratedMachine):
        return paces_of(machine, comm.rank, scene.workers)
    if comm.rank >= scene.workers:
        return Paces(lambda: 0.0, lambda share: machine.step_s(comm.rank))
    return Paces(lambda: machine.step_s(comm.rank), lambda share: 0.0)
