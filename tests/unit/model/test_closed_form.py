"""The closed form of a synchronous step: the slowest compute, then the exchange."""

import numpy as np
import pytest

from manyhands.errors import UserError
from manyhands.model.closed_form import Call, slowest_s, step_s
from manyhands.model.cluster import READY_LINKS, Cluster, SlowNode, read_cluster
from manyhands.model.hierarchy import call_s
from manyhands.model.slowest import Slowest

STEPS = Slowest.of(1e-3 * (1 + np.random.default_rng(0).exponential(0.1, 500)))
CLUSTER = Cluster(nodes=1024, cores=4, between=READY_LINKS["ethernet-10g"])
RANKS = np.array([1, 2, 4, 5, 64, 1000, 4096])


def test_one_rank_only_computes() -> None:
    assert float(step_s(1, STEPS, [Call("all-reduce", 1e6)], CLUSTER)) == pytest.approx(float(STEPS.expected_s(1)))


def test_a_step_is_the_slowest_compute_and_then_every_call() -> None:
    calls = [Call("reduce", 1e6), Call("broadcast", 1e6), Call("all-reduce", 8.0, per_step=1 / 8)]
    parts = [call_s(each.name, RANKS, each.num_bytes, CLUSTER, 1e-10) * each.per_step for each in calls]
    expected = STEPS.expected_s(RANKS) + parts[0] + parts[1] + parts[2]
    assert step_s(RANKS, STEPS, calls, CLUSTER, 1e-10).tolist() == pytest.approx(expected.tolist())


def test_bytes_may_differ_between_configurations() -> None:
    shares = 1e6 / RANKS
    table = step_s(RANKS, STEPS, [Call("all-gather", shares)], CLUSTER)
    alone = [float(step_s(int(p), STEPS, [Call("all-gather", n)], CLUSTER)) for p, n in zip(RANKS, shares, strict=True)]
    assert table.tolist() == pytest.approx(alone)


def test_faster_cores_compute_faster() -> None:
    fast = CLUSTER.model_copy(update={"core_speed": 2.0})
    assert slowest_s(RANKS, STEPS, fast).tolist() == pytest.approx((slowest_s(RANKS, STEPS, CLUSTER) / 2).tolist())


def test_a_slow_node_is_waited_for_once_its_ranks_take_part() -> None:
    slow = CLUSTER.model_copy(update={"slow": (SlowNode(node=1, factor=3.0),)})
    before, after = slowest_s([4, 5, 6, 64], STEPS, CLUSTER), slowest_s([4, 5, 6, 64], STEPS, slow)
    assert after[0] == pytest.approx(before[0])
    assert after[1:].tolist() == pytest.approx((3 * STEPS.expected_s([1, 2, 4])).tolist())


def test_a_node_that_is_hardly_slow_is_one_of_the_others_no_more() -> None:
    slow = CLUSTER.model_copy(update={"slow": (SlowNode(node=0, factor=1.001),)})
    assert float(slowest_s(8, STEPS, slow)) == pytest.approx(1.001 * float(STEPS.expected_s(4)))


def test_more_ranks_than_the_cluster_has_room_for() -> None:
    with pytest.raises(UserError, match="4097 ranks are more than the cluster has room for, which is 4096: 1024 nodes"):
        step_s([1, 4097], STEPS, [], CLUSTER)


def test_nodes_that_are_all_slow() -> None:
    slow = Cluster(
        nodes=2,
        cores=2,
        between=READY_LINKS["infiniband"],
        slow=(SlowNode(node=0, factor=2.0), SlowNode(node=1, factor=2.0)),
    )
    assert slowest_s([1, 3, 4], STEPS, slow).tolist() == pytest.approx((2 * STEPS.expected_s([1, 3, 4])).tolist())


@pytest.mark.parametrize("name", ["ethernet-1g", "nvlink"])
def test_a_hundred_thousand_configurations_up_to_65536_ranks(name: str) -> None:
    random = np.random.default_rng(0)
    ranks, sizes = random.integers(1, 65_537, 100_000), 10 ** random.uniform(2, 9, 100_000)
    took = step_s(ranks, STEPS, [Call("all-reduce", sizes)], read_cluster(name), 1e-10)
    assert took.shape == (100_000,)
    assert np.isfinite(took).all()
    for i in range(3):
        again = step_s(int(ranks[i]), STEPS, [Call("all-reduce", sizes[i])], read_cluster(name), 1e-10)
        assert took[i] == pytest.approx(float(again))
