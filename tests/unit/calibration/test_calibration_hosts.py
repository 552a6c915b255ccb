"""A calibration between hosts: whose clocks differ, whose workers do not share a core, and whose ports are shared."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from made_up_machine import ETHERNET, calibration, constant, network

from manyhands import sync
from manyhands.calibration import worker as calibration_worker
from manyhands.calibration.calibrate import num_hosts
from manyhands.calibration.worker import clock_lead_s, shifted
from manyhands.comm import Comm
from manyhands.errors import UserError
from manyhands.model.host import BURST
from manyhands.record.calibration import Calibration
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.request import WorkerCount

Ranks = Callable[[Callable[[Comm], Any], int], list[Any]]
AHEAD_S = 1000.0


def apart(factor: float = 1.0, **options: Any) -> Calibration:
    """Make a calibration of two hosts with one worker each, and a port that carries one message after the other."""
    known = calibration(constant, factor=factor, **options)
    points = [
        point.model_copy(update={"us": [BURST * us for us in point.us]}) if point.call == "stream" else point
        for point in known.comms["mpi"].points
    ]
    comm = known.comms["mpi"].model_copy(update={"hosts": 2, "model": "mpich-hosts", "points": points})
    crowd = [each.model_copy(update={"hosts": 2}) for each in known.contention if each.engine == "mpi"]
    silent = {point.rows: point for point in known.tasks["mlp"].points}
    crowd = [each.model_copy(update={"silent": silent[each.rows]}) for each in crowd]
    return known.model_copy(update={"comms": {"mpi": comm}, "contention": crowd})


def predicted(known: Calibration, spec: str, workers: int, way: str = "events") -> Predicted:
    asked = Predictor(known, network(), "mpi", None, steps=200)
    point = WorkerCount(workers, workers, 64 * workers, 10**9)
    strategy = sync.make(spec)
    return asked.events(strategy, point, lambda: None) if way == "events" else next(asked.formula(strategy, [point]))


def test_how_far_a_clock_is_ahead_is_found(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's thread has a clock of its own."""
    clock, ahead = calibration_worker.time.perf_counter, threading.local()
    monkeypatch.setattr(calibration_worker.time, "perf_counter", lambda: clock() + getattr(ahead, "s", 0.0))

    def ask(comm: Comm) -> float:
        ahead.s = AHEAD_S * comm.rank
        return clock_lead_s(comm)

    assert ranks(ask, 3) == pytest.approx([0.0, -AHEAD_S, -2 * AHEAD_S], abs=AHEAD_S / 10)


def test_stamps_move_to_the_first_ranks_clock_but_for_those_that_do_not_count() -> None:
    found = shifted([{"call": "send", "num_bytes": 8, "stamps": [(5.0, 6.0), (5.0, 0.0)]}], -2.0)
    assert found == [{"call": "send", "num_bytes": 8, "stamps": [(3.0, 4.0), (3.0, 0.0)]}]


@pytest.mark.parametrize(("hosts", "number"), [("aaa", 1), ("abc", 3)])
def test_ranks_are_on_one_host_or_on_one_each(hosts: str, number: int) -> None:
    assert num_hosts([{"host": host} for host in hosts]) == number


def test_a_mixture_of_both_is_refused() -> None:
    with pytest.raises(UserError, match="the 3 ranks were on 2 hosts"):
        num_hosts([{"host": host} for host in "aab"])


def test_what_was_measured_on_one_host_does_not_stay_beside_several() -> None:
    here, there = calibration(constant), apart()
    both = calibration(constant, task="other").joined(there)
    assert both.crowd("mpi", "other") == []
    assert len(both.crowd("threads", "other")) > 0
    assert len(both.crowd("mpi", "mlp")) > 0
    assert not here.joined(calibration(constant)).comms["mpi"].apart


def test_more_hosts_slow_each_other_down_no_more_than_two() -> None:
    known = apart(factor=1.5)
    two, four = (predicted(known, "allreduce", n).split for n in (2, 4))
    assert four.compute_s == pytest.approx(two.compute_s)


def test_steps_without_an_exchange_before_them_are_as_fast_as_alone() -> None:
    known = apart(factor=2.0)
    every, seldom = (predicted(known, f"local-sgd:period={period}", 2).split.compute_s for period in (1, 4))
    assert every == pytest.approx(2 * constant(64)[0] / 1e3)
    assert seldom == pytest.approx((2 + 3) / 4 * constant(64)[0] / 1e3)


@pytest.mark.parametrize("way", ["events", "formula"])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_servers_port_takes_all_gradients_and_then_carries_all_weights(workers: int, way: str) -> None:
    """All workers are answered at the same time, so that none begins while others are still being answered."""
    known = apart(adding=1e6)  # a server adds in no time
    more, fewer = (predicted(known, "parameter-server", n, way).split for n in (workers + 1, workers))
    port_s = 4 * 235_146 / 1e10  # of calls that carry 10 GB/s
    assert more.step_s - fewer.step_s == pytest.approx(2 * port_s, rel=0.1)


def test_nodes_of_several_cores_need_a_calibration_of_one_host() -> None:
    nodes = ETHERNET.model_copy(update={"cores": 4})
    with pytest.raises(UserError, match="was calibrated between hosts with one worker each"):
        Predictor(apart(), network(), "mpi", nodes).events(
            sync.make("allreduce"), WorkerCount(2, 8, 512, 100), lambda: None
        )
