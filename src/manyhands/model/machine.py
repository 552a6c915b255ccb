"""A machine to simulate on, made of what was measured here: how long ranks compute, and what their calls take."""

from collections import Counter
from collections.abc import Sequence
from typing import final

import numpy as np

from manyhands.comm.sim import Machine
from manyhands.errors import check
from manyhands.model.cluster import Cluster, LinkSpec
from manyhands.model.crowd import StepTimes, contention, persistence, step_times
from manyhands.model.hierarchy import hierarchical_s
from manyhands.model.host import HostCalls
from manyhands.model.links import Floats
from manyhands.model.sharing import Growth
from manyhands.model.slowest import Slowest, like_levels
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import Calibration, CommCosts

STEPS = 16
"""Steps that are drawn at once for all ranks; a rank that is slow may be so for all of them."""
COMPUTE, UPDATE, LOOP, JITTER = range(4)
"""What is drawn, each from random numbers of its own."""


@final
class CalibratedMachine(Machine):
    """Draws what ranks take from measured distributions; the same seed gives the same draws.

    Made by `machine_of`. A worker's `step_s` is its forward and backward pass alone, so that the exchange comes
    between it and the optimiser's step: `update_s` and `loop_s` are the rest of the step.
    """

    def __init__(
        self,
        cluster: Cluster,
        host: HostCalls | None,
        times: Sequence[StepTimes],
        *,
        num_workers: int,
        num_servers: int,
        server_adds_s: float,
        gamma_s_per_byte: float,
        touch_s_per_byte: float,
        update_share: float,
        contention: Growth,
        persistence: float,
        shares_ports: bool,
        seed: int,
    ) -> None:
        self.shares_ports = shares_ports
        self.cluster = cluster
        """What is simulated; this host with as many cores as ranks, where no other was asked for."""
        self.gamma_s_per_byte = gamma_s_per_byte
        """γ of calls between cores of the calibrated machine."""
        self.touch_s_per_byte = touch_s_per_byte
        """Of going through the gradients, as a strategy does that scales or adds, on such a core."""
        self.contention = contention
        """How many times as long a worker computes as alone, since others share its node."""
        kinds = {id(each): each for each in times}.values()  # of which there are few, whatever the number of workers
        self.compute = Slowest.of(max(kinds, key=lambda each: float(each.whole_s.mean())).whole_s)
        """A worker's whole step without its exchange, contention included, on a core of the calibrated machine.

        For the closed form, which counts in the cluster's core speed and slow nodes itself. Where workers differ in
        rows, it is that of the most.
        """
        self._host, self._num_workers, self._num_servers = host, num_workers, num_servers
        self._num_ranks = num_workers + num_servers
        self._slowness = cluster.slowness(self._num_ranks)
        self._server_adds_s = server_adds_s
        servers = [times[-1]] * num_servers
        self.persistence = persistence
        """How much alike the steps are that follow each other: correlation."""
        self.update_share = update_share
        """Of what a worker does besides forward and backward, the optimiser's step."""
        computed = [each.compute_s for each in times]
        self._compute = _Draws(computed, self._slowness[:num_workers], (seed, COMPUTE), persistence)
        serial = [each.serial_s for each in (*times, *servers)]
        self._update = _Draws(serial, self._slowness, (seed, UPDATE), persistence)
        self._loop = _Draws(serial[:num_workers], self._slowness[:num_workers], (seed, LOOP), persistence)
        self._random = np.random.default_rng((seed, JITTER))
        self._costs_s: dict[tuple[str, Sequence[int], float], float] = {}

    def step_s(self, rank: int) -> float:
        """Draw a worker's forward and backward pass, or a server's update of its slice and what it adds up for it."""
        if rank < self._num_workers:
            return self._compute.next(rank)
        return self.update_s(rank) / self._num_servers + self._server_adds_s * float(self._slowness[rank])

    def update_s(self, rank: int) -> float:
        """Draw an optimiser's step."""
        return self.update_share * self._update.next(rank)

    def loop_s(self, rank: int) -> float:
        """Draw what a worker does in every step besides, whoever makes the optimiser's."""
        return (1 - self.update_share) * self._loop.next(rank)

    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        """Return what a call takes; on this host, with its jitter."""
        key = (call, ranks if isinstance(ranks, range) else tuple(ranks), num_bytes)
        if key not in self._costs_s:
            self._costs_s[key] = self._quiet_s(call, key[1], num_bytes)
        return self._costs_s[key] * self._jitter(call, num_bytes)

    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        """Return a message's latency, and how long it keeps the ports busy."""
        if self._host is not None:
            jitter = self._jitter("send", num_bytes)
            latency_s, busy_s = self._host.message_s(num_bytes, self._num_ranks)
            return latency_s * jitter, busy_s * jitter
        inside = self._node(source) == self._node(to)
        link = (self.cluster.inside if inside else self.cluster.between).link()
        busy_s = link.busy_s(float(num_bytes))
        return link.message_s(float(num_bytes)) - busy_s, busy_s

    def mean_message_s(self, source: int, to: int, num_bytes: float) -> tuple[float, float]:
        """Return the same on average, for the closed form."""
        if self._host is None:
            return self.message_s(source, to, int(num_bytes))
        jitter = float(np.mean(self._host.jitter("send", num_bytes)))
        latency_s, busy_s = self._host.message_s(num_bytes, self._num_ranks)
        return latency_s * jitter, busy_s * jitter

    def call_s(self, call: str, num_ranks: int, num_bytes: float) -> float:
        """Return what a call of the first ranks takes on average, for the closed form."""
        if self._host is not None:
            return self._host.mean_s(call, num_ranks, num_bytes)
        return self._quiet_s(call, range(num_ranks), num_bytes)

    def _quiet_s(self, call: str, ranks: Sequence[int], num_bytes: float) -> float:
        if self._host is not None:
            return self._host.quiet_s(call, len(ranks), num_bytes)
        of_node = Counter(self._node(rank) for rank in ranks)
        inside, between = self.cluster.inside.link(), self.cluster.between.link()
        gamma = self.gamma_s_per_byte / self.cluster.core_speed
        size = max(of_node.values())
        return float(hierarchical_s(call, len(of_node), size, num_bytes, inside, between, gamma))

    def _jitter(self, call: str, num_bytes: int) -> float:
        if self._host is None:
            return 1.0
        factors = self._host.jitter(call, num_bytes)
        return float(factors[self._random.integers(len(factors))])

    def _node(self, rank: int) -> int:
        return rank // self.cluster.node_size


@final
class _Draws:
    """Draws for every rank, a block of steps at once; a rank's are the same in whatever order the ranks ask."""

    def __init__(self, samples_s: Sequence[Floats], factors: Floats, seed: tuple[int, int], persistence: float) -> None:
        kinds = {id(samples): samples for samples in samples_s}
        self._kinds = [
            (Slowest.of(samples), np.array([id(each) == key for each in samples_s])) for key, samples in kinds.items()
        ]
        self._factors, self._seed, self._persistence = factors, seed, persistence
        self._made = [0] * len(samples_s)
        self._blocks: dict[int, list[list[float]]] = {}
        self._ranks_in: Counter[int] = Counter()

    def next(self, rank: int) -> float:
        """Return this rank's next."""
        block, place = divmod(self._made[rank], STEPS)
        self._made[rank] += 1
        if block not in self._blocks:
            self._blocks[block] = self._draw(block)
        value = self._blocks[block][rank][place]
        if place == STEPS - 1:
            self._ranks_in[block] += 1
            if self._ranks_in[block] == len(self._made):
                del self._blocks[block]  # no rank asks for it again
        return value

    def _draw(self, block: int) -> list[list[float]]:
        random = np.random.default_rng((*self._seed, block))
        levels = like_levels(random, (len(self._made), STEPS), self._persistence)
        drawn = np.empty_like(levels)
        for slowest, mask in self._kinds:
            drawn[mask] = slowest.quantile_s(levels[mask])
        found: list[list[float]] = (drawn * self._factors[:, None]).tolist()
        return found


def machine_of(
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
) -> CalibratedMachine:
    """Make the machine for a run of so many workers, and servers after them; without a cluster it is this host, or as
    many like it as there are ranks, where it was calibrated between hosts.

    Rows may be given for each worker. `pushes` is how many gradients a server adds up for one update: all workers'
    where they go in lockstep; `period` how many steps there are to an exchange.
    """
    check(task in calibration.tasks, f"task '{task}' is not calibrated; run 'manyhands calibrate {task}'")
    again = f"manyhands calibrate {task} --engines {engine}"
    measured = engine in calibration.comms and calibration.crowd(engine, task)
    check(bool(measured), f"engine {engine} is not calibrated with task '{task}'; run '{again}'")
    comm = calibration.comms[engine]
    in_steps = [call for each in calibration.crowd(engine, task) for call in each.exchanges]
    host = HostCalls(comm, in_steps, calibration.cores.lock_us)
    place = cluster or this_host(comm, workers + servers)
    place.check_room(workers + servers)
    check(
        cluster is None or cluster.node_size == 1 or not comm.apart,
        f"engine {engine} was calibrated between hosts with one worker each, so that nobody knows how much "
        f"{place.node_size} workers of a node disturb each other; give a calibration of one host, or nodes of one core",
    )
    rows = [float(rows_per_worker)] * workers if isinstance(rows_per_worker, int | float) else list(rows_per_worker)
    assert len(rows) == workers
    sharing = Counter(rank // place.node_size for rank in range(workers))
    kinds = [(own, sharing[rank // place.node_size]) for rank, own in enumerate(rows)]
    talks = workers + servers > 1
    times = {kind: step_times(calibration, task, engine, *kind, period=period, talks=talks) for kind in set(kinds)}
    most = max(kinds)
    costs = calibration.tasks[task]
    touch_s = 1e-3 * undisturbed(costs.touch_ms)
    passes = pushes + 1 if pushes > 1 else 1  # to add up what each worker sent, and to put it where a step finds it
    return CalibratedMachine(
        place,
        host if cluster is None else None,
        [times[kind] for kind in kinds],
        num_workers=workers,
        num_servers=servers,
        server_adds_s=passes * touch_s / max(1, servers),
        gamma_s_per_byte=host.gamma_s_per_byte,
        touch_s_per_byte=touch_s / costs.weight_bytes,
        contention=contention(calibration, task, engine, *most),
        update_share=costs.update_share,
        persistence=persistence(calibration, task, engine, most[1]),
        shares_ports=cluster is None and comm.apart,
        seed=seed,
    )


def this_host(comm: CommCosts, cores: int) -> Cluster:
    """Describe the calibrated machine as one node with so many cores."""
    link = LinkSpec(
        latency_us=comm.latency_us,
        gigabit_per_s=8 * comm.gigabyte_per_s,
        overhead_us=min(comm.overhead_us, comm.latency_us),
        duplex=comm.duplex,
    )
    return Cluster(nodes=1, cores=cores, inside=link, between=link)
