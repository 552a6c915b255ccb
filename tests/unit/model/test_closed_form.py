"""The slowest of p ranks of a cluster, and calls between them, for arrays of both."""

import numpy as np
import pytest

from manyhands.model.cluster import READY_LINKS, Cluster, SlowNode, read_cluster
from manyhands.model.hierarchy import call_s
from manyhands.model.slowest import Slowest

STEPS = Slowest.of(1e-3 * (1 + np.random.default_rng(0).exponential(0.1, 500)))
CLUSTER = Cluster(nodes=1024, cores=4, between=READY_LINKS["ethernet-10g"])
RANKS = np.array([1, 2, 4, 5, 64, 1000, 4096])


def test_one_rank_waits_for_nobody() -> None:
    assert float(STEPS.expected_on_s(CLUSTER, 1)) == pytest.approx(float(STEPS.expected_s(1)))


def test_faster_cores_compute_faster() -> None:
    fast = CLUSTER.model_copy(update={"core_speed": 2.0})
    assert STEPS.expected_on_s(fast, RANKS).tolist() == pytest.approx(
        (STEPS.expected_on_s(CLUSTER, RANKS) / 2).tolist()
    )


def test_a_slow_node_is_waited_for_once_its_ranks_take_part() -> None:
    slow = CLUSTER.model_copy(update={"slow": (SlowNode(node=1, factor=3.0),)})
    before, after = STEPS.expected_on_s(CLUSTER, [4, 5, 6, 64]), STEPS.expected_on_s(slow, [4, 5, 6, 64])
    assert after[0] == pytest.approx(before[0])
    assert after[1:].tolist() == pytest.approx((3 * STEPS.expected_s([1, 2, 4])).tolist())


def test_a_node_that_is_hardly_slow_is_one_of_the_others_no_more() -> None:
    slow = CLUSTER.model_copy(update={"slow": (SlowNode(node=0, factor=1.001),)})
    assert float(STEPS.expected_on_s(slow, 8)) == pytest.approx(1.001 * float(STEPS.expected_s(4)))


def test_nodes_that_are_all_slow() -> None:
    slow = Cluster(
        nodes=2,
        cores=2,
        between=READY_LINKS["infiniband"],
        slow=(SlowNode(node=0, factor=2.0), SlowNode(node=1, factor=2.0)),
    )
    assert STEPS.expected_on_s(slow, [1, 3, 4]).tolist() == pytest.approx((2 * STEPS.expected_s([1, 3, 4])).tolist())


@pytest.mark.parametrize("name", ["ethernet-1g", "nvlink"])
def test_a_hundred_thousand_configurations_up_to_65536_ranks(name: str) -> None:
    random = np.random.default_rng(0)
    ranks, sizes = random.integers(1, 65_537, 100_000), 10 ** random.uniform(2, 9, 100_000)
    cluster = read_cluster(name)
    slowest, calls = STEPS.expected_on_s(cluster, ranks), call_s("all-reduce", ranks, sizes, cluster, 1e-10)
    assert slowest.shape == calls.shape == (100_000,)
    assert np.isfinite(slowest + calls).all()
    for i in range(3):
        rank, size = int(ranks[i]), float(sizes[i])
        assert slowest[i] == pytest.approx(float(STEPS.expected_on_s(cluster, rank)))
        assert calls[i] == pytest.approx(float(call_s("all-reduce", rank, size, cluster, 1e-10)))
