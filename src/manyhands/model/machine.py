"""The machine that is simulated, from a calibration: how long ranks compute, and the times of their calls."""

from collections import Counter
from collections.abc import Sequence
from typing import final

import numpy as np

from manyhands.comm.sim import Machine
from manyhands.errors import check
from manyhands.model.cluster import Cluster, LinkSpec
from manyhands.model.crowd import persistence, step_times
from manyhands.model.hierarchy import hierarchical_s
from manyhands.model.host import HostCalls
from manyhands.model.links import Floats
from manyhands.model.slowest import Slowest, correlated_levels
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import Calibration, CommCosts

STEPS = 16
"""Steps that are drawn at once for all ranks, and within which a rank's steps are correlated."""
COMPUTE, UPDATE, LOOP, JITTER = range(4)
"""Random streams, each with a seed of its own."""


@final
class CalibratedMachine(Machine):
    """Draws the times of workers, and of servers ranked after them, from measured distributions.

    The same seed gives the same draws. A worker's `step_s` is its forward and backward pass alone, so that the exchange
    comes between it and the rest of the step: `update_s` and `loop_s`.
    """

    def __init__(
        self,
        calibration: Calibration,
        task: str,
        *,
        engine: str,
        cluster: Cluster | None = None,
        workers: int,
        rows_per_worker: float | Sequence[float],
        servers: int = 0,
        pushes: int = 1,
        period: int = 1,
        seed: int = 0,
    ) -> None:
        """Without a cluster, simulate the calibrated host, or one host per rank where it was calibrated between hosts.

        rows_per_worker: One number for all workers, or one for each.
        pushes: Gradients that a server adds up for one update: those of all workers where they go in lockstep.
        period: Steps per exchange.
        """
        comm, costs = calibration.comms[engine], calibration.tasks[task]
        check(
            cluster is None or cluster.node_size == 1 or not comm.apart,
            f"engine {engine} was calibrated between hosts with one worker each, so the slow-down of several workers "
            "on one node is unknown; give a calibration of one host, or nodes of one core",
        )
        self._num_workers, self._num_servers, self._num_ranks = workers, servers, workers + servers
        self.cluster = cluster or _this_host(comm, self._num_ranks)
        """The simulated cluster; without one, this host with a core for each rank."""
        self.cluster.check_room(self._num_ranks)
        self.shares_ports = cluster is None and comm.apart
        in_steps = [call for point in calibration.crowd(engine, task) for call in point.exchanges]
        host = HostCalls(comm, in_steps, calibration.cores.lock_us)
        self._host = host if cluster is None else None
        self.on_host = cluster is None
        """Whether the calibrated host itself is simulated, whose calls were measured."""
        self.gamma_s_per_byte = host.gamma_s_per_byte
        """γ of calls between cores of the calibrated machine."""
        self.launch_s = 1e-6 * comm.launch_us
        """Time of a collective call besides its messages."""
        touch_s = 1e-3 * undisturbed(costs.touch_ms)
        self.touch_s_per_byte = touch_s / costs.weight_bytes
        """Time to pass over gradients once, as for scaling or adding, on a core of the calibrated machine."""
        passes = pushes + 1 if pushes > 1 else 1  # one per gradient to add, and one to copy the sum
        self._server_adds_s = passes * touch_s / max(1, servers)
        rows = [float(rows_per_worker)] * workers if isinstance(rows_per_worker, int | float) else list(rows_per_worker)
        assert len(rows) == workers
        sharing = Counter(map(self._node, range(workers)))
        kinds = [(num_rows, sharing[self._node(rank)]) for rank, num_rows in enumerate(rows)]
        talks = self._num_ranks > 1
        of_kind = {
            kind: step_times(calibration, task, engine, *kind, period=period, talks=talks)
            for kind in dict.fromkeys(kinds)
        }
        times = [of_kind[kind] for kind in kinds]
        slowest = max(of_kind.values(), key=lambda samples: float(samples.whole_s.mean()))
        self.usual_step_s = float(Slowest.of(slowest.whole_s).expected_s(1)) / self.cluster.core_speed
        """Mean step without its exchange of the worker with the most rows, on a node that is not slow."""
        self.persistence = persistence(calibration, task, engine, max(kinds)[1])
        """Correlation between successive steps of a worker."""
        self.update_share = costs.update_share
        """Share of the optimiser's step in a worker's time besides forward and backward."""
        self._slowness = self.cluster.slowness(self._num_ranks)
        slowness = self._slowness[:workers]
        serial = [samples.serial_s for samples in (*times, *[times[-1]] * servers)]
        self._compute = _Draws([samples.compute_s for samples in times], slowness, (seed, COMPUTE), self.persistence)
        self._update = _Draws(serial, self._slowness, (seed, UPDATE), self.persistence)
        self._loop = _Draws(serial[:workers], slowness, (seed, LOOP), self.persistence)
        self._random = np.random.default_rng((seed, JITTER))
        self._costs_s: dict[tuple[str, Sequence[int], float], float] = {}

    def step_s(self, rank: int) -> float:
        """Draw a worker's forward and backward pass, or a server's additions and update of its slice."""
        if rank < self._num_workers:
            return self._compute.next(rank)
        return self.update_s(rank) / self._num_servers + self._server_adds_s * float(self._slowness[rank])

    def update_s(self, rank: int) -> float:
        """Draw the time of an optimiser's step over all weights."""
        return self.update_share * self._update.next(rank)

    def loop_s(self, rank: int) -> float:
        """Draw the time of the loop around a worker's step, which it has even where a server updates."""
        return (1 - self.update_share) * self._loop.next(rank)

    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        key = (call, ranks if isinstance(ranks, range) else tuple(ranks), num_bytes)
        if key not in self._costs_s:
            self._costs_s[key] = self._quiet_s(call, key[1], num_bytes)
        return self._costs_s[key] * self._jitter(call, num_bytes)

    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        jitter = self._jitter("send", num_bytes)
        latency_s, busy_s = self._quiet_message_s(source, to, num_bytes)
        return latency_s * jitter, busy_s * jitter

    def mean_message_s(self, source: int, to: int, num_bytes: float) -> tuple[float, float]:
        """Return the mean of `message_s`, for the closed form."""
        if self._host is None:
            return self._quiet_message_s(source, to, int(num_bytes))
        jitter = float(np.mean(self._host.jitter("send", num_bytes)))
        latency_s, busy_s = self._quiet_message_s(source, to, num_bytes)
        return latency_s * jitter, busy_s * jitter

    def call_s(self, call: str, num_ranks: int, num_bytes: float) -> float:
        """Return the mean of `collective_s` among the first `num_ranks` ranks, for the closed form."""
        if self._host is not None:
            return self._host.mean_s(call, num_ranks, num_bytes)
        return self._quiet_s(call, range(num_ranks), num_bytes)

    def _quiet_s(self, call: str, ranks: Sequence[int], num_bytes: float) -> float:
        if self._host is not None:
            return self._host.quiet_s(call, len(ranks), num_bytes)
        of_node = Counter(map(self._node, ranks))
        size = max(of_node.values())
        messages_s = hierarchical_s(call, len(of_node), size, num_bytes, self.cluster, self.gamma_s_per_byte)
        return float(messages_s) + (self.launch_s if len(ranks) > 1 else 0.0)

    def _quiet_message_s(self, source: int, to: int, num_bytes: float) -> tuple[float, float]:
        if self._host is not None:
            return self._host.message_s(num_bytes, self._num_ranks)
        inside = self._node(source) == self._node(to)
        link = (self.cluster.inside if inside else self.cluster.between).link()
        busy_s = link.busy_s(float(num_bytes))
        return link.message_s(float(num_bytes)) - busy_s, busy_s

    def _jitter(self, call: str, num_bytes: int) -> float:
        if self._host is None:
            return 1.0
        factors = self._host.jitter(call, num_bytes)
        return float(factors[self._random.integers(len(factors))])

    def _node(self, rank: int) -> int:
        return rank // self.cluster.node_size


@final
class _Draws:
    """Draws step times of all ranks in blocks of steps, so that they do not depend on the order in which ranks ask."""

    def __init__(self, samples_s: Sequence[Floats], factors: Floats, seed: tuple[int, int], persistence: float) -> None:
        kinds = {id(samples): samples for samples in samples_s}  # few, however many the ranks
        self._kinds = [
            (Slowest.of(samples), np.array([id(other) == key for other in samples_s])) for key, samples in kinds.items()
        ]
        self._factors, self._seed, self._persistence = factors, seed, persistence
        self._num_drawn = [0] * len(samples_s)
        self._blocks: dict[int, list[list[float]]] = {}
        self._ranks_done: Counter[int] = Counter()

    def next(self, rank: int) -> float:
        """Return the next time of this rank."""
        block, place = divmod(self._num_drawn[rank], STEPS)
        self._num_drawn[rank] += 1
        if block not in self._blocks:
            self._blocks[block] = self._draw(block)
        value = self._blocks[block][rank][place]
        if place == STEPS - 1:
            self._ranks_done[block] += 1
            if self._ranks_done[block] == len(self._num_drawn):
                del self._blocks[block]
        return value

    def _draw(self, block: int) -> list[list[float]]:
        random = np.random.default_rng((*self._seed, block))
        levels = correlated_levels(random, (len(self._num_drawn), STEPS), self._persistence)
        drawn = np.empty_like(levels)
        for slowest, mask in self._kinds:
            drawn[mask] = slowest.quantile_s(levels[mask])
        times_s: list[list[float]] = (drawn * self._factors[:, None]).tolist()
        return times_s


def _this_host(comm: CommCosts, cores: int) -> Cluster:
    """Describe the calibrated host as one node with `cores` cores."""
    link = LinkSpec(
        latency_us=comm.latency_us,
        gigabit_per_s=8 * comm.gigabyte_per_s,
        overhead_us=min(comm.overhead_us, comm.latency_us),
        duplex=comm.duplex,
    )
    return Cluster(nodes=1, cores=cores, inside=link, between=link)
