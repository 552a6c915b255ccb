"""The calibrated machine draws what was measured, the same for the same seed, and knows slow nodes and clusters."""

import numpy as np
import pytest
from made_up_calibration import GAMMA, LINK, WEIGHT_BYTES, affine, calibration, varying

from manyhands.comm.sim import SimComm, SimWorld
from manyhands.errors import UserError
from manyhands.model.cluster import READY_LINKS, Cluster, SlowNode
from manyhands.model.hierarchy import call_s
from manyhands.model.machine import CalibratedMachine

MANY = 20_000
ETHERNET = Cluster(nodes=8, cores=1, between=READY_LINKS["ethernet-1g"])


def machine(**options: object) -> CalibratedMachine:
    given = {"engine": "mpi", "cluster": ETHERNET, "workers": 4, "rows_per_worker": 8, **options}
    compute = given.pop("compute", varying)
    factor = given.pop("factor", 1.0)
    return CalibratedMachine(calibration(compute, factor=factor), "mlp", **given)  # type: ignore[arg-type]


def draws(made: CalibratedMachine, rank: int, num: int = MANY) -> np.ndarray:
    return np.array([made.step_s(rank) for _ in range(num)])


def test_draws_have_the_distribution_that_was_measured() -> None:
    """Uniform from a half to one and a half of 6 ms: its mean, and its quantiles."""
    drawn = draws(machine(), 0)
    assert drawn.mean() == pytest.approx(6e-3, rel=0.01)
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    assert np.quantile(drawn, levels) == pytest.approx(6e-3 * (0.5 + levels), rel=0.02)
    assert drawn.max() < 1.6 * 6e-3


def test_draws_of_steps_and_of_ranks_do_not_follow_each_other() -> None:
    made = machine()
    first, second = draws(made, 0), draws(made, 1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05


def test_steps_that_were_alike_while_they_followed_each_other_are_drawn_alike() -> None:
    """Of which the distribution stays what it was, and ranks do not follow each other."""
    made = machine(compute=lambda rows: sorted(varying(rows)))
    first, second = draws(made, 0), draws(made, 1)
    assert np.corrcoef(first[1:], first[:-1])[0, 1] > 0.8
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert first.mean() == pytest.approx(6e-3, rel=0.02)


def test_the_same_seed_gives_the_same_draws_in_whatever_order_ranks_ask() -> None:
    a, b, other = machine(seed=3), machine(seed=3), machine(seed=4)
    in_turn = [[a.step_s(rank) for rank in range(4)] for _ in range(200)]
    one_by_one = [[b.step_s(rank) for _ in range(200)] for rank in range(4)]
    assert np.array_equal(np.array(in_turn), np.array(one_by_one).T)
    assert other.step_s(0) != in_turn[0][0]
    assert a.update_s(0) == b.update_s(0)


def test_a_block_that_all_ranks_have_drawn_is_given_free() -> None:
    made = machine(workers=2)
    for _ in range(1000):
        made.step_s(0)
        made.step_s(1)
    assert len(made._compute._blocks) <= 1


def test_the_update_is_the_rest_of_a_step() -> None:
    made = machine(compute=affine)
    assert made.update_s(1) == pytest.approx(0.25e-3)
    assert made.step_s(1) == pytest.approx(6e-3)
    assert made.usual_step_s == pytest.approx(6.25e-3)


def test_workers_may_have_different_rows() -> None:
    made = machine(compute=affine, workers=3, rows_per_worker=[8, 8, 7])
    assert [made.step_s(rank) for rank in range(3)] == pytest.approx([6e-3, 6e-3, 5.5e-3])
    assert made.usual_step_s == pytest.approx(6.25e-3), "the most rows decide"


def test_slow_nodes_and_faster_cores() -> None:
    """Two ranks to a node; the second node takes three times as long, and all cores are twice as fast."""
    slow = Cluster(
        nodes=2, cores=2, core_speed=2.0, between=READY_LINKS["infiniband"], slow=(SlowNode(node=1, factor=3.0),)
    )
    made = machine(compute=affine, cluster=slow)
    assert [made.step_s(rank) for rank in range(4)] == pytest.approx([3e-3, 3e-3, 9e-3, 9e-3])
    assert made.update_s(3) == pytest.approx(0.25e-3 / 2 * 3)
    assert made.usual_step_s == pytest.approx(6.25e-3 / 2), "of a node that is not slow"


def test_ranks_that_share_a_node_slow_each_other_down() -> None:
    """Three workers on nodes of two: the third has its node to itself."""
    pair = Cluster(nodes=2, cores=2, between=READY_LINKS["infiniband"])
    made = machine(compute=affine, factor=1.5, cluster=pair, workers=3)
    assert [made.step_s(rank) for rank in range(3)] == pytest.approx([9e-3, 9e-3, 6e-3])
    assert machine(compute=affine, factor=1.5).step_s(0) == pytest.approx(6e-3), "nodes of one rank share nothing"


@pytest.mark.parametrize("call", ["all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter", "barrier"])
def test_calls_on_a_cluster_cost_what_its_links_do(call: str) -> None:
    cluster = Cluster(nodes=4, cores=2, core_speed=2.0, between=READY_LINKS["ethernet-10g"])
    made = machine(cluster=cluster, workers=8)
    expected = float(call_s(call, 8, 10**6, cluster, GAMMA))
    assert made.collective_s(call, range(8), 10**6) == pytest.approx(expected)
    assert made.call_s(call, 8, 10**6) == pytest.approx(expected)


def test_a_group_costs_what_its_own_ranks_do() -> None:
    """Ranks 0 and 1 share a node, 0 and 2 do not."""
    cluster = Cluster(nodes=2, cores=2, between=READY_LINKS["ethernet-1g"])
    made = machine(cluster=cluster)
    near, far = (made.collective_s("all-reduce", ranks, 10**6) for ranks in ([0, 1], [0, 2]))
    assert near == pytest.approx(made.call_s("all-reduce", 2, 10**6))
    assert far > 10 * near


def test_messages_on_a_cluster() -> None:
    cluster = Cluster(nodes=2, cores=2, between=READY_LINKS["ethernet-1g"])
    made = machine(cluster=cluster)
    for to, link in ((1, cluster.inside.link()), (2, cluster.between.link())):
        latency_s, busy_s = made.message_s(0, to, 10**6)
        assert latency_s + busy_s == pytest.approx(link.message_s(1e6))
        assert busy_s == pytest.approx(link.busy_s(1e6))


@pytest.mark.parametrize("engine", ["threads", "mpi"])
def test_without_a_cluster_it_is_this_host(engine: str) -> None:
    made = machine(compute=affine, engine=engine, cluster=None, workers=2, factor=1.5)
    assert made.cluster.nodes == 1
    assert made.cluster.cores == 2
    assert made.step_s(0) == pytest.approx(9e-3)
    measured = next(
        each.us[0]
        for each in calibration().comms[engine].points
        if (each.call, each.num_bytes) == ("all-reduce", 2**21)
    )
    assert made.collective_s("all-reduce", range(2), 2**21) == pytest.approx(1e-6 * measured)
    assert sum(made.message_s(0, 1, 2**21)) == pytest.approx(LINK.message_s(float(2**21)))


def test_more_workers_than_cores_are_this_host_with_more_of_them() -> None:
    made = machine(compute=affine, cluster=None, workers=16, factor=1.2)
    assert made.step_s(0) > 1.2 * 6e-3
    assert made.call_s("all-reduce", 16, 2**21) > made.call_s("all-reduce", 2, 2**21)


def test_a_server_updates_its_slice_and_adds_up_what_was_pushed() -> None:
    """Of two servers each has half of the weights; it adds up three gradients, and puts down their sum."""
    made = machine(compute=affine, workers=3, servers=2, pushes=3)
    adds_s = 4 * WEIGHT_BYTES / 2 * GAMMA
    assert made.step_s(3) == pytest.approx(0.25e-3 / 2 + adds_s)
    assert made.step_s(4) == pytest.approx(made.step_s(3))


def test_virtual_ranks_run_on_it() -> None:
    """Four ranks compute, meet, and are as late as the slowest and the call; the same each time."""

    def run() -> list[float]:
        made = machine(seed=1)

        def work(comm: SimComm) -> float:
            for _ in range(5):
                comm.advance(made.step_s(comm.rank))
                comm.barrier()
                comm.advance(made.update_s(comm.rank))
            return comm.clock()

        return SimWorld(4, made).run(work)

    first = run()
    again = machine(seed=1)
    steps = np.array([[again.step_s(rank) for rank in range(4)] for _ in range(5)])
    expected = steps.max(axis=1).sum() + 5 * (0.25e-3 + again.call_s("barrier", 4, 0))
    assert first == pytest.approx([expected] * 4)
    assert run() == first


def test_more_ranks_than_the_cluster_has() -> None:
    with pytest.raises(UserError, match=r"9 ranks are more than the cluster has room for"):
        machine(workers=8, servers=1)
