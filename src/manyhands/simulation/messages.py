"""Closed forms of step times for strategies whose ranks send messages: who waits for whom is written out here.

A message has a latency L and occupies its ports for b, so that workers queue for the port of a server. The server
answers them one after the other, so they arrive one after the other in the next step too: a step has one of the two
queues, of gradients or of weights, and both only after a meeting from which all workers start at once.
"""

from collections.abc import Callable
from typing import final

import numpy as np

from manyhands.model.links import Floats
from manyhands.model.slowest import Slowest
from manyhands.simulation.forms import AlikeCounts, Closed, between, meetings, sample
from manyhands.sync import Sync
from manyhands.virtual.events import StepSplit

RING = 256
"""Ranks of a ring beyond which more make no difference, since each waits only for its neighbours."""
RING_STEPS = 80
DRAWN = 200_000
"""Arrival times that are drawn to find the last worker at a port."""


@final
class Exchange:
    """The terms of the closed forms, for one number of workers."""

    def __init__(self, series: AlikeCounts) -> None:
        self.series, self._machine, self._cluster = series, series.machine, series.machine.cluster
        scene = series.scene
        self.workers, self.servers = scene.workers, scene.strategy.num_servers()
        self.num_bytes = scene.outline.num_bytes
        """Bytes of all weights."""
        self.update_s, self.loop_s = series.update_s, series.serial_s - series.update_s
        """Mean time of the optimiser's step over all weights, and of the loop around it."""
        self._compute = Slowest.of(series.times.compute_s / self._cluster.core_speed)
        self.compute_s = float(self._compute.expected_s(1))
        """Mean time of a forward and backward pass, on a node that is not slow."""
        self.slowness = float(self._cluster.slowness(self.workers).mean()) * self._cluster.core_speed
        """Mean slow-down of the workers due to slow nodes."""
        # Where messages share a port fairly, all workers are answered at the same time, in every step.
        apart = 1 if self._machine.shares_ports else min(series.steps_per_flush, scene.steps_per_epoch)
        self.in_a_row = round(apart)
        """Steps between two meetings, from which all workers start at once."""

    def touch_s(self, num_bytes: float) -> float:
        """Return the time to pass over `num_bytes` once, as for scaling or adding."""
        return num_bytes * self._machine.touch_s_per_byte / self._cluster.core_speed

    def message_s(self, num_bytes: float) -> tuple[float, float]:
        """Return L and b of a message between the first and the last rank."""
        return self._machine.mean_message_s(0, self.workers + self.servers - 1, num_bytes)

    def computed_s(self, draws: int, workers: int) -> Floats:
        """Draw `draws` forward and backward passes of each of the first `workers` workers."""
        slowness = self._cluster.slowness(workers) * self._cluster.core_speed
        return self._compute.quantile_s(np.random.default_rng(0).random((draws, workers))) * slowness

    def last_s(self, busy_s: float) -> float:
        """Return when the last worker reaches a port that serves each for `busy_s`, and served them in turn before."""
        draws, order = max(8, DRAWN // self.workers), np.arange(self.workers)
        arrivals = np.sort(self.computed_s(draws, self.workers) + busy_s * order, axis=1)
        return float((arrivals + busy_s * order[::-1]).max(axis=1).mean())

    def split(self, step_s: float, serial_s: float) -> StepSplit:
        """Attribute to communication all time that is neither compute nor serial, since waiting is not separable."""
        return StepSplit(self.compute_s, serial_s, max(0.0, step_s - self.compute_s - serial_s), 0.0)


Form = Callable[[Exchange], StepSplit]


def message_forms(series: AlikeCounts, form: Form) -> Closed:
    """Return the step times of a strategy whose messages `form` describes."""
    splits = []
    for i in sample(len(series.workers)):
        one = series.at(int(i))
        alone = one.scene.workers + one.scene.strategy.num_servers() == 1  # and sends nothing
        splits.append(meetings(one).splits[0] if alone else form(Exchange(one)))
    return Closed(between(series, splits), 0)


def _root(ex: Exchange) -> StepSplit:
    """Rank 0 receives p − 1 gradients, adds, updates, and answers one worker after the other."""
    latency_s, busy_s = ex.message_s(ex.num_bytes)
    adds_s = ex.touch_s((ex.workers + 1) * ex.num_bytes)
    step_s = ex.last_s(busy_s) - busy_s + 2 * (latency_s + busy_s) + adds_s + ex.update_s + ex.loop_s
    step_s += (ex.workers - 2) * busy_s / ex.in_a_row
    return ex.split(step_s, (adds_s + ex.update_s) / ex.workers + ex.loop_s)


def _servers(ex: Exchange) -> StepSplit:
    """Each server receives p slices, adds, updates, and answers one worker after the other."""
    pass_s = ex.touch_s(ex.num_bytes)
    latency_s, busy_s = ex.message_s(ex.num_bytes / ex.servers)
    adds_s = ((ex.workers + 1) * pass_s + ex.update_s) / ex.servers
    step_s = ex.last_s(busy_s) + pass_s + ex.loop_s + 2 * latency_s + (ex.servers + 1) * busy_s + adds_s
    step_s += (ex.workers - 1) * busy_s / ex.in_a_row
    return ex.split(step_s, pass_s + ex.loop_s)


def _asynchronous_servers(ex: Exchange) -> StepSplit:
    """Workers cycle independently, until the servers or their ports are saturated."""
    pass_s = ex.touch_s(ex.num_bytes)
    latency_s, busy_s = ex.message_s(ex.num_bytes / ex.servers)
    alone_s = ex.compute_s * ex.slowness
    update_s = (ex.update_s + pass_s) / ex.servers
    cycle_s = alone_s + pass_s + ex.loop_s + 2 * latency_s + (ex.servers + 1) * busy_s + update_s
    service_s = max(busy_s, update_s)
    straggling_s = float((ex.series.without_exchange_s(ex.in_a_row) - ex.series.without_exchange_s(0))[0])
    step_s = max(cycle_s + straggling_s, ex.workers * service_s)
    return ex.split(step_s + min(cycle_s, (ex.workers - 1) * service_s) / ex.in_a_row, pass_s + ex.loop_s)


def _ring(ex: Exchange) -> StepSplit:
    """Step through a ring: even ranks send and then receive, odd ranks the reverse; first to the right, then left."""
    latency_s, busy_s = ex.message_s(ex.num_bytes)
    size = min(ex.workers, RING + ex.workers % 2)
    serial_s = ex.update_s + ex.loop_s + ex.touch_s((4 if size > 2 else 3) * ex.num_bytes)
    message_s = latency_s + busy_s
    now, first = np.zeros(size), 0.0
    for step, computed_s in enumerate(ex.computed_s(RING_STEPS, size)):
        now = now + computed_s + serial_s
        for shift in (1, -1) if size > 2 else (1,):
            now = _shifted(now, shift, message_s)
        if (step + 1) % ex.in_a_row == 0:
            now = np.full(size, now.max())
        if step == RING_STEPS // 2 - 1:
            first = float(now.mean())
    step_s = (float(now.mean()) - first) / (RING_STEPS - RING_STEPS // 2)
    return ex.split(step_s, serial_s)


def _shifted(now: Floats, shift: int, message_s: float) -> Floats:
    """Return the clocks after every rank has sent to one neighbour and received from the other."""
    odd = np.arange(len(now)) % 2 == 1
    done = np.where(odd, np.maximum(now, np.roll(now, shift) + message_s), now)  # odd ranks have received
    return np.where(odd, done, np.maximum(now, np.roll(done, shift) + message_s))


FORMS: dict[tuple[str, str, str, bool], Form] = {
    ("step", "star", "root", True): _root,
    ("step", "star", "servers", True): _servers,
    ("step", "star", "servers", False): _asynchronous_servers,
    ("step", "ring", "all", True): _ring,
}
"""Closed forms by a strategy's `exchanges`, `pattern`, `updates` and `lockstep`."""


def form_of(strategy: Sync) -> Form | None:
    """Return the closed form of the messages that `strategy` sends in every step; None where there is none."""
    return FORMS.get((strategy.exchanges, strategy.pattern, strategy.updates, strategy.lockstep))
