"""The time of a step by formula where ranks send messages to each other: who waits for whom is written out here.

A message is on its way for a latency L and keeps its ports busy for b, so that a server's workers queue for its port.
They are answered one after the other, so in the next step they come one after the other too: of the two queues, of
gradients and of weights, a step has only one, except where the workers have just met and all began at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from manyhands.model.links import Floats
from manyhands.model.slowest import Slowest
from manyhands.simulation.forms import AlikeCounts, Closed, between, meetings, sample
from manyhands.sync import Sync
from manyhands.virtual.events import StepSplit, meet_every

RING = 256
"""Ranks of a ring beyond which more make no difference: each waits only for its neighbours."""
RING_STEPS = 80
DRAWN = 200_000
"""Times that are drawn for the slowest of workers that come one after the other."""


@final
@dataclass(frozen=True)
class Exchange:
    """What the formulas are made of, for one number of workers."""

    series: AlikeCounts

    @property
    def strategy(self) -> Sync:
        """What is exchanged, and when."""
        return self.series.scene.strategy

    @property
    def workers(self) -> int:
        """How many there are."""
        return self.series.scene.workers

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights."""
        return self.series.scene.outline.num_bytes

    @property
    def update_s(self) -> float:
        """Seconds of the optimiser's step over all weights."""
        return self.series.update_s

    @property
    def loop_s(self) -> float:
        """Of what a worker does in every step besides."""
        return self.series.serial_s - self.series.update_s

    def touch_s(self, num_bytes: float) -> float:
        """Return what it takes a rank to go through so many bytes."""
        machine = self.series.machine
        return num_bytes * machine.touch_s_per_byte / machine.cluster.core_speed

    def message_s(self, num_bytes: float) -> tuple[float, float]:
        """Return L and b of a message between ranks that are far apart."""
        last = self.workers + self.strategy.num_servers() - 1
        return self.series.machine.mean_message_s(0, last, num_bytes)

    @cached_property
    def compute(self) -> Slowest:
        """A worker's forward and backward pass."""
        return Slowest.of(self.series.times.compute_s / self.series.machine.cluster.core_speed)

    def computed_s(self, draws: int, workers: int) -> Floats:
        """Draw so many passes of the first workers, on the nodes that they are on."""
        cluster = self.series.machine.cluster
        slowness = cluster.slowness(workers) * cluster.core_speed
        return self.compute.draw_s(np.random.default_rng(0), (draws, workers)) * slowness

    def last_s(self, busy_s: float) -> float:
        """Return when the last of workers is at a port that takes each so long and that they left in turn."""
        draws, order = max(8, DRAWN // self.workers), np.arange(self.workers)
        come = np.sort(self.computed_s(draws, self.workers) + busy_s * order, axis=1)
        return float((come + busy_s * order[::-1]).max(axis=1).mean())

    @cached_property
    def in_a_row(self) -> int:
        """Steps after which workers meet to tell how they are doing, and then all begin at once."""
        if self.series.machine.shares_ports:
            return 1  # they were all answered at the same time
        return round(min(meet_every(self.strategy, self.series.usual_s), self.series.scene.steps_per_epoch))

    def split(self, step_s: float, serial_s: float) -> StepSplit:
        """Call what is neither compute nor the workers' own work the exchange; who waits for whom it does not tell."""
        compute_s = float(self.compute.expected_s(1))
        return StepSplit(compute_s, serial_s, max(0.0, step_s - compute_s - serial_s), 0.0)


Form = Callable[[Exchange], StepSplit]


def message_forms(series: AlikeCounts, form: Form) -> Closed:
    """Return where the time of a step goes, for a strategy whose messages `form` knows."""
    return Closed(between(series, [_split(series.at(int(i)), form) for i in sample(len(series.workers))]), 0)


def _split(series: AlikeCounts, form: Form) -> StepSplit:
    if series.scene.workers + series.scene.strategy.num_servers() == 1:
        return meetings(series).splits[0]  # it sends nothing
    return form(Exchange(series))


def _root(ex: Exchange) -> StepSplit:
    """Rank 0 takes p − 1 gradients, adds, steps, and answers one worker after the other."""
    latency_s, busy_s = ex.message_s(ex.num_bytes)
    adds_s = ex.touch_s((ex.workers + 1) * ex.num_bytes)
    step_s = ex.last_s(busy_s) - busy_s + 2 * (latency_s + busy_s) + adds_s + ex.update_s + ex.loop_s
    step_s += (ex.workers - 2) * busy_s / ex.in_a_row
    return ex.split(step_s, (adds_s + ex.update_s) / ex.workers + ex.loop_s)


def _servers(ex: Exchange) -> StepSplit:
    """Each server takes p slices, adds, steps, and answers one worker after the other."""
    servers, own_s = ex.strategy.num_servers(), ex.touch_s(ex.num_bytes)
    latency_s, busy_s = ex.message_s(ex.num_bytes / servers)
    adds_s = ((ex.workers + 1) * own_s + ex.update_s) / servers
    step_s = ex.last_s(busy_s) + own_s + ex.loop_s + 2 * latency_s + (servers + 1) * busy_s + adds_s
    step_s += (ex.workers - 1) * busy_s / ex.in_a_row
    return ex.split(step_s, own_s + ex.loop_s)


def _servers_at_once(ex: Exchange) -> StepSplit:
    """A worker goes around by itself, until the servers or their ports have no time left."""
    servers, own_s = ex.strategy.num_servers(), ex.touch_s(ex.num_bytes)
    latency_s, busy_s = ex.message_s(ex.num_bytes / servers)
    slowness = float(ex.series.machine.cluster.slowness(ex.workers).mean()) * ex.series.machine.cluster.core_speed
    alone_s = float(ex.compute.expected_s(1)) * slowness
    update_s = (ex.update_s + own_s) / servers
    around_s = alone_s + own_s + ex.loop_s + 2 * latency_s + (servers + 1) * busy_s + update_s
    served_s = max(busy_s, update_s)
    late_s = float(ex.series.own_s(ex.in_a_row)[0] - ex.series.own_s(0)[0])
    step_s = max(around_s + late_s, ex.workers * served_s)
    return ex.split(step_s + min(around_s, (ex.workers - 1) * served_s) / ex.in_a_row, own_s + ex.loop_s)


def _ring(ex: Exchange) -> StepSplit:
    """Follow a ring of ranks: even ones send and then receive, odd ones the other way round, first right, then left."""
    latency_s, busy_s = ex.message_s(ex.num_bytes)
    size = min(ex.workers, RING + ex.workers % 2)
    own_s = ex.update_s + ex.loop_s + ex.touch_s((4 if size > 2 else 3) * ex.num_bytes)
    message_s = latency_s + busy_s
    now, first = np.zeros(size), 0.0
    for step, computed_s in enumerate(ex.computed_s(RING_STEPS, size)):
        now = now + computed_s + own_s
        for shift in (1, -1) if size > 2 else (1,):
            now = _shifted(now, shift, message_s)
        if (step + 1) % ex.in_a_row == 0:
            now = np.full(size, now.max())
        if step == RING_STEPS // 2 - 1:
            first = float(now.mean())
    step_s = (float(now.mean()) - first) / (RING_STEPS - RING_STEPS // 2)
    return ex.split(step_s, own_s)


def _shifted(now: Floats, shift: int, message_s: float) -> Floats:
    """Let every rank send to one neighbour and receive from the other."""
    odd = np.arange(len(now)) % 2 == 1
    done = np.where(odd, np.maximum(now, np.roll(now, shift) + message_s), now)  # what odd ranks have received
    sent = np.where(odd, done, now)
    return np.where(odd, done, np.maximum(now, np.roll(sent, shift) + message_s))


def form_of(strategy: Sync) -> Form | None:
    """Return the formula for the messages that `strategy` sends in every step; None where none is known."""
    match strategy.exchanges, strategy.pattern, strategy.updates, strategy.lockstep:
        case "step", "star", "root", True:
            return _root
        case "step", "star", "servers", True:
            return _servers
        case "step", "star", "servers", False:
            return _servers_at_once
        case "step", "ring", "all", True:
            return _ring
    return None
