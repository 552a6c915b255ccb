"""Every formula of a collective agrees with a machine that carries out its messages one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_machine import PLANS, Machine, Schedule, among, rank_has_its_result

from manyhands.model.cluster import READY_LINKS, Cluster, LinkSpec
from manyhands.model.collectives import ALGORITHMS, best_s
from manyhands.model.hierarchy import PARTS, call_s, hierarchical_s
from manyhands.model.links import Link

EVERY_ALGORITHM = sorted((call, name) for call in ALGORITHMS for name in ALGORITHMS[call])
RANKS = st.integers(1, 17)
POWERS = st.sampled_from([1, 2, 4, 8, 16])
BYTES = st.floats(0, 1e9)
GAMMAS = st.floats(0, 1e-8)
PAIRS_ONLY = {("all-reduce", "recursive-doubling"), ("all-reduce", "rabenseifner"), ("reduce", "rabenseifner")}
"""Ranks send to each other in pairs for any number of ranks, so that two turns of half-duplex ports are enough."""


@st.composite
def links(draw: st.DrawFn) -> Link:
    """Draw links whose ports are busy all through α, as the classic model has them."""
    alpha = draw(st.floats(0, 1e-2))
    return Link(alpha, draw(st.floats(1e-12, 1e-6)), alpha)


def spec_of(link: Link) -> LinkSpec:
    latency_us = 1e6 * link.alpha_s
    return LinkSpec(latency_us=latency_us, gigabit_per_s=8e-9 / link.beta_s_per_byte, overhead_us=latency_us)


def carried_out(call: str, name: str, p: int, num_bytes: float, link: Link, gamma: float) -> float:
    """Carry a call out, check what every rank ends up with, and return when the last is done."""
    if p == 1:
        return 0.0
    plan = PLANS[call, name]
    chunk_bytes = 0.0 if call == "barrier" else plan.chunk_bytes(p, num_bytes)
    machine = Machine(p, plan.num_chunks(p), lambda a, b: link, gamma)
    end_s = machine.run(plan.schedule(p), chunk_bytes)
    for rank, chunks in enumerate(machine.values):
        assert rank_has_its_result(call, p, rank, chunks)
    return end_s


def cheapest(call: str, p: int, num_bytes: float, link: Link, gamma: float) -> str:
    return min(ALGORITHMS[call], key=lambda name: float(ALGORITHMS[call][name](p, num_bytes, link, gamma)))


def about(seconds: float) -> object:
    return pytest.approx(seconds, rel=1e-9, abs=1e-15)


def test_every_algorithm_has_a_plan() -> None:
    assert sorted(PLANS) == EVERY_ALGORITHM


@pytest.mark.parametrize(("call", "name"), EVERY_ALGORITHM)
@given(p=RANKS, num_bytes=BYTES, link=links(), gamma=GAMMAS)
@settings(max_examples=30)
def test_formulas_are_exact(call: str, name: str, p: int, num_bytes: float, link: Link, gamma: float) -> None:
    cost = float(ALGORITHMS[call][name](p, num_bytes, link, gamma))
    assert cost == about(carried_out(call, name, p, num_bytes, link, gamma))


@pytest.mark.parametrize(("call", "name"), EVERY_ALGORITHM)
@given(p=RANKS, num_bytes=BYTES, link=links(), gamma=GAMMAS, busy=st.floats(0, 1))
@settings(max_examples=15)
def test_where_latencies_overlap_formulas_are_upper_bounds(
    call: str, name: str, p: int, num_bytes: float, link: Link, gamma: float, busy: float
) -> None:
    link = replace(link, overhead_s=link.alpha_s * busy)
    cost = float(ALGORITHMS[call][name](p, num_bytes, link, gamma))
    took = carried_out(call, name, p, num_bytes, link, gamma)
    assert took <= cost * (1 + 1e-9) + 1e-15
    if call == "send":
        assert cost == about(took)


@pytest.mark.parametrize(("call", "name"), EVERY_ALGORITHM)
@given(p=POWERS, num_bytes=BYTES, link=links(), gamma=GAMMAS)
@settings(max_examples=15)
def test_half_duplex_is_exact_for_powers_of_two(
    call: str, name: str, p: int, num_bytes: float, link: Link, gamma: float
) -> None:
    link = replace(link, full_duplex=False)
    cost = float(ALGORITHMS[call][name](p, num_bytes, link, gamma))
    assert cost == about(carried_out(call, name, p, num_bytes, link, gamma))


@pytest.mark.parametrize(("call", "name"), EVERY_ALGORITHM)
@given(p=RANKS, num_bytes=BYTES, link=links(), gamma=GAMMAS)
@settings(max_examples=15)
def test_half_duplex_is_a_lower_bound_elsewhere_unless_ranks_pair_up(
    call: str, name: str, p: int, num_bytes: float, link: Link, gamma: float
) -> None:
    link = replace(link, full_duplex=False)
    cost = float(ALGORITHMS[call][name](p, num_bytes, link, gamma))
    took = carried_out(call, name, p, num_bytes, link, gamma)
    assert cost <= took * (1 + 1e-9) + 1e-15
    if (call, name) in PAIRS_ONLY:
        assert cost == about(took)


@given(p=st.integers(2, 70_000), n=BYTES, link=links(), gamma=GAMMAS)
def test_formulas_of_the_literature(p: int, n: float, link: Link, gamma: float) -> None:
    """Thakur et al. give recursive doubling and Rabenseifner for powers of two; elsewhere extra ranks cost more."""
    alpha, beta = link.alpha_s, link.beta_s_per_byte
    share, lg_up = (p - 1) / p, (p - 1).bit_length()
    power = p & (p - 1) == 0
    costs = {name: float(each(p, n, link, gamma)) for name, each in ALGORITHMS["all-reduce"].items()}
    assert costs["ring"] == about(2 * (p - 1) * alpha + 2 * share * n * beta + share * n * gamma)
    assert costs["reduce-broadcast"] == about(2 * lg_up * (alpha + n * beta) + lg_up * n * gamma)
    doubling = lg_up * (alpha + n * beta + n * gamma)
    assert costs["recursive-doubling"] == about(doubling if power else doubling + alpha + n * beta)
    q = 1 << p.bit_length() - 1
    inner = 2 * (p.bit_length() - 1) * alpha + 2 * (q - 1) / q * n * beta + (q - 1) / q * n * gamma
    assert costs["rabenseifner"] == about(inner if power else inner + 3 * alpha + 2 * n * beta + n / 2 * gamma)


@pytest.mark.parametrize(("call", "name"), EVERY_ALGORITHM)
def test_arrays_give_what_single_numbers_give(call: str, name: str) -> None:
    each, link = ALGORITHMS[call][name], READY_LINKS["ethernet-1g"].link()
    ranks, sizes = np.array([1, 2, 3, 64, 65_536]), np.array([[0.0], [8.0], [1e6]])
    table = np.broadcast_to(each(ranks, sizes, link, 1e-10), (3, 5))
    assert (table[:, 0] == 0).all()
    for i, n in enumerate(sizes[:, 0]):
        assert [float(each(p, n, link, 1e-10)) for p in ranks] == table[i].tolist()


def test_the_best_algorithm_is_the_cheapest() -> None:
    link = READY_LINKS["ethernet-10g"].link()
    ranks, sizes = np.array([[2], [3], [16], [100], [4096]]), np.array([4.0, 1e4, 1e6, 1e9])
    costs = best_s("all-reduce", ranks, sizes, link, 1e-10)
    assert costs.shape == (5, 4)
    for (i, j), cost in np.ndenumerate(costs):
        every = [float(a(ranks[i, 0], sizes[j], link, 1e-10)) for a in ALGORITHMS["all-reduce"].values()]
        assert cost == min(every)
    assert cheapest("all-reduce", 16, 4.0, link, 1e-10) == "recursive-doubling"  # little to send: few messages
    assert cheapest("all-reduce", 100, 1e9, link, 1e-10) == "ring"  # extra ranks would send all of it twice


def _in_each_node(schedule: Schedule, nodes: int, size: int) -> Schedule:
    """Let every node carry out a schedule among its ranks, the first of which is the root."""
    everywhere = [among([node * size + r for r in range(size)], schedule) for node in range(nodes)]
    return [[m for messages in rounds for m in messages] for rounds in zip(*everywhere, strict=True)]


@pytest.mark.parametrize("call", ["all-reduce", "reduce", "broadcast"])
@given(
    nodes=st.integers(2, 5), size=st.integers(1, 5), n=st.floats(0, 1e7), inside=links(), between=links(), gamma=GAMMAS
)
@settings(max_examples=20)
def test_hierarchies_are_exact(
    call: str, nodes: int, size: int, n: float, inside: Link, between: Link, gamma: float
) -> None:
    """The parts are carried out one after the other by the algorithms that were found best for them."""
    cluster = Cluster(nodes=nodes, cores=size, inside=spec_of(inside), between=spec_of(between))
    inside, between = cluster.inside.link(), cluster.between.link()
    machine = Machine(nodes * size, 1, lambda a, b: inside if a // size == b // size else between, gamma)
    for part in PARTS[call]:
        p, link = (size, inside) if part.inside else (nodes, between)
        name = cheapest(part.call, p, n, link, gamma)
        if p == 1:
            continue
        plan = PLANS[part.call, name]
        schedule = plan.schedule(p)
        leaders = [node * size for node in range(nodes)]
        schedule = _in_each_node(schedule, nodes, size) if part.inside else among(leaders, schedule)
        machine.values = [[row[0]] * plan.num_chunks(p) for row in machine.values]
        machine.run(schedule, plan.chunk_bytes(p, n))
    for rank, chunks in enumerate(machine.values):
        assert rank_has_its_result(call, nodes * size, rank, chunks)
    cost = float(hierarchical_s(call, nodes, size, n, cluster, gamma))
    assert cost == about(float(machine.clock.max()))


@pytest.mark.parametrize("call", ALGORITHMS)
def test_a_cluster_costs_what_its_links_cost(call: str) -> None:
    """In one node that is the link inside; of nodes with one rank, the link between."""
    single = Cluster(nodes=64, cores=1, between=READY_LINKS["ethernet-1g"])
    several = Cluster(nodes=8, cores=8, inside=READY_LINKS["nvlink"], between=READY_LINKS["ethernet-1g"])
    inside, between = several.inside.link(), several.between.link()
    ranks = np.arange(1, 65)
    cost = call_s(call, ranks, 1e6, several, 1e-10)
    assert cost[:8].tolist() == best_s(call, ranks[:8], 1e6, inside, 1e-10).tolist()
    assert cost[8] > cost[7]
    assert call_s(call, ranks, 1e6, single, 1e-10).tolist() == pytest.approx(
        best_s(call, ranks, 1e6, between, 1e-10).tolist(), rel=1e-12
    )


def test_faster_cores_add_faster() -> None:
    slow = Cluster(nodes=4, cores=1, between=READY_LINKS["infiniband"])
    fast = slow.model_copy(update={"core_speed": 2.0})
    extra = [float(call_s("reduce", 4, 1e6, c, 1e-9) - call_s("reduce", 4, 1e6, c, 0.0)) for c in (slow, fast)]
    assert extra[0] == pytest.approx(2 * extra[1])
