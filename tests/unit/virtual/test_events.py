"""Steps of virtual ranks take what must come out where everything is known."""

import math
from dataclasses import replace

import pytest
from made_up_machine import CODEC, ETHERNET, NUMEL, OUTLINE, calibration, constant, varying

from manyhands import registry, sync
from manyhands.model.cluster import Cluster, SlowNode
from manyhands.model.hierarchy import call_s
from manyhands.model.machine import CalibratedMachine
from manyhands.replica.meta import GradientReady
from manyhands.replica.update import cut_aligned
from manyhands.sync import Sync
from manyhands.virtual.events import Scene, StepSplit, simulate_steps

STEPS = 16
"""So few that the workers of a real run would not have met in between to tell how they are doing."""
COMPUTE_S, UPDATE_S, BYTES = 7.4e-3, 0.25e-3, 4 * NUMEL
TOUCH_S = BYTES * 1e-10
ADDING = 10.0
FREE = 1e9
"""Gigabytes a second at which adding costs nothing."""


def machine(text: str, n: int, adding: float = FREE, times=constant, cluster: Cluster = ETHERNET, seed: int = 0):
    strategy = sync.make(text)
    return CalibratedMachine(
        calibration(times, adding=adding),
        "mlp",
        engine="mpi",
        cluster=cluster,
        workers=n,
        rows_per_worker=64,
        servers=strategy.num_servers(),
        pushes=n if strategy.lockstep else 1,
        seed=seed,
    )


def split(text: str, n: int, *, steps: int = STEPS, steps_per_epoch: int = 1000, on: CalibratedMachine | None = None):
    scene = Scene(sync.make(text), n, OUTLINE, steps_per_epoch, CODEC if text.startswith("compressed") else None)
    return simulate_steps(scene, on or machine(text, n), steps)


def exchange_s(call: str, n: int, num_bytes: float = BYTES) -> float:
    return float(call_s(call, n, num_bytes, ETHERNET, 1e-9 / FREE))


def message_s(num_bytes: float) -> tuple[float, float]:
    link = ETHERNET.between.link()
    return link.message_s(num_bytes), link.busy_s(num_bytes)


@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_all_reduce(n: int) -> None:
    found = split("allreduce", n)
    assert found.step_s == pytest.approx(COMPUTE_S + exchange_s("all-reduce", n) + UPDATE_S)
    assert found.comm_s == pytest.approx(exchange_s("all-reduce", n))
    assert found.compute_s == pytest.approx(COMPUTE_S)
    assert found.serial_s == pytest.approx(UPDATE_S)
    assert found.wait_s == pytest.approx(0, abs=1e-12)


def test_reduce_broadcast_has_the_update_between_its_calls() -> None:
    found = split("reduce-broadcast", 5)
    comm_s = exchange_s("reduce", 5) + exchange_s("broadcast", 5)
    assert found.step_s == pytest.approx(COMPUTE_S + comm_s + UPDATE_S)
    assert found.serial_s == pytest.approx(UPDATE_S / 5)  # only the root has one; the others wait for it
    assert found.wait_s == pytest.approx(UPDATE_S * 4 / 5)


def test_a_sharded_update_takes_a_share() -> None:
    width = cut_aligned(NUMEL, 4)[0][1]
    comm_s = exchange_s("reduce-scatter", 4, 4 * 4 * width) + exchange_s("all-gather", 4, 4 * width)
    assert split("sharded", 4).step_s == pytest.approx(COMPUTE_S + comm_s + UPDATE_S * width / NUMEL)


@pytest.mark.parametrize("period", [1, 4, 5])
def test_local_sgd_pays_for_a_mean_once_in_a_period(period: int) -> None:
    found = split(f"local-sgd:period={period}", 6)
    assert found.step_s == pytest.approx(COMPUTE_S + UPDATE_S + exchange_s("all-reduce", 6) / period)


def test_an_average_per_epoch_is_paid_once_in_an_epoch() -> None:
    expected = COMPUTE_S + UPDATE_S + exchange_s("all-reduce", 6) / 1000
    assert split("average-epoch", 6).step_s == pytest.approx(expected)
    short = split("average-epoch", 6, steps_per_epoch=4)
    # At an epoch's end the workers flush their meters: four steps with a loss and an entry each, one all-reduce.
    gather_s = exchange_s("all-gather", 6, 8 * (2 + 2 * 4 + 1))
    assert short.step_s == pytest.approx(COMPUTE_S + UPDATE_S + (exchange_s("all-reduce", 6) + gather_s) / 4)


def test_an_average_at_the_end_is_no_part_of_a_step() -> None:
    assert split("average-once", 6).step_s == pytest.approx(COMPUTE_S + UPDATE_S)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_workers_queue_for_a_servers_port(n: int) -> None:
    latency_and_busy_s, busy_s = message_s(BYTES)
    step_s = split("parameter-server", n).step_s
    assert step_s == pytest.approx(COMPUTE_S + UPDATE_S + (n - 1) * busy_s + 2 * latency_and_busy_s, rel=1e-4)


def test_two_servers_halve_the_queue() -> None:
    def queue_s(text: str) -> float:
        return split(text, 12).step_s - split(text, 2).step_s

    assert queue_s("parameter-server:servers=2") == pytest.approx(queue_s("parameter-server") / 2, rel=0.01)


def test_nobody_waits_for_others_in_async() -> None:
    alone, several = split("async-server", 1), split("async-server", 5)
    assert several.step_s == pytest.approx(alone.step_s)
    latency_and_busy_s, _ = message_s(BYTES)
    assert alone.step_s == pytest.approx(COMPUTE_S + UPDATE_S + 2 * latency_and_busy_s, rel=1e-4)


def test_async_is_bound_by_its_server_in_the_end() -> None:
    _, busy_s = message_s(BYTES)
    assert split("async-server", 40).step_s == pytest.approx(40 * busy_s, rel=0.01)


def test_a_slow_worker_holds_up_lockstep_but_not_async() -> None:
    slow = ETHERNET.model_copy(update={"slow": (SlowNode(node=0, factor=3.0),)})
    lock, free = (split(t, 4, on=machine(t, 4, cluster=slow)) for t in ("parameter-server", "async-server"))
    assert lock.step_s > 3 * COMPUTE_S
    assert free.step_s < 1.5 * split("async-server", 4).step_s + 0.5 * COMPUTE_S


def test_overlap_hides_buckets_behind_the_backward_pass() -> None:
    bucket = 50_000
    stops = range(NUMEL, 0, -bucket)
    # The last layers, all above 200,960, are final after 60 % of the pass.
    ready = [COMPUTE_S * (0.6 if max(0, stop - bucket) >= 200_960 else 1.0) for stop in stops]
    cost = [exchange_s("all-reduce", 4, 4 * (stop - max(0, stop - bucket))) for stop in stops]
    end_s = 0.0
    for ready_s, cost_s in zip(ready, cost, strict=True):
        end_s = max(ready_s, end_s) + cost_s
    assert split(f"overlap:bucket={bucket}", 4).step_s == pytest.approx(end_s + UPDATE_S)


def test_a_bucket_that_is_final_early_is_hidden() -> None:
    half = NUMEL // 2
    outline = replace(OUTLINE, ready=lambda: (GradientReady(0.3, half, NUMEL), GradientReady(1.0, 0, half)))

    def step_s(bucket: int) -> float:
        scene = Scene(sync.make(f"overlap:bucket={bucket}"), 4, outline, 1000)
        return simulate_steps(scene, machine("overlap", 4), STEPS).step_s

    shown_s = exchange_s("all-reduce", 4, 4 * half)
    assert step_s(NUMEL - half) == pytest.approx(COMPUTE_S + shown_s + UPDATE_S)
    assert step_s(NUMEL) == pytest.approx(split("allreduce", 4).step_s)


def test_gossip_waits_for_neighbours_alone() -> None:
    assert split("gossip", 64).step_s == pytest.approx(split("gossip", 8).step_s)


def test_a_codec_takes_its_measured_time_and_exchanges_less() -> None:
    found = split("compressed", 3)
    coding_s = CODEC.encode_s + 4 * CODEC.decode_s  # its own code once more, for what it leaves out
    assert found.step_s == pytest.approx(
        COMPUTE_S + coding_s + exchange_s("all-gather", 3, CODEC.code_bytes) + UPDATE_S
    )


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("allreduce", 0),
        ("local-sgd:period=1", 2),  # scales the gradient, divides the sum
        ("gossip", 4),  # scales the gradient, adds both neighbours', divides
        ("gather-server", 5),  # copies, adds three, and copies the sum
    ],
)
def test_what_a_strategy_does_with_the_weights_takes_time(text: str, passes: int) -> None:
    with_cost, without = split(text, 4, on=machine(text, 4, ADDING)), split(text, 4)
    more = passes * TOUCH_S
    collective = exchange_s("all-reduce", 4) if text.startswith(("allreduce", "local")) else 0.0
    adds_in_call = float(call_s("all-reduce", 4, BYTES, ETHERNET, 1e-10)) - collective if collective else 0.0
    assert with_cost.step_s - without.step_s == pytest.approx(more + adds_in_call, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("text", ["allreduce", "reduce-broadcast", "overlap"])
def test_one_worker_is_serial(text: str) -> None:
    assert split(text, 1) == StepSplit(*(pytest.approx(s) for s in (COMPUTE_S, UPDATE_S, 0.0, 0.0)))


@pytest.mark.parametrize("text", registry.names(sync, Sync))
@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_strategy_runs_and_gives_the_same_again(text: str, n: int) -> None:
    first, again = (split(text, n, steps=6, on=machine(text, n, ADDING, varying)) for _ in range(2))
    assert first == again
    assert first.step_s >= first.compute_s > 0
    other = split(text, n, steps=6, on=machine(text, n, ADDING, varying, seed=1))
    assert other.step_s != first.step_s


def test_the_slowest_is_waited_for() -> None:
    few, many = (split("allreduce", n, on=machine("allreduce", n, times=varying), steps=100) for n in (2, 50))
    assert many.wait_s > few.wait_s > 0
    assert many.compute_s == pytest.approx(few.compute_s, rel=0.02)


def test_longer_periods_wait_less() -> None:
    waits = [
        split(f"local-sgd:period={k}", 8, on=machine("allreduce", 8, times=varying), steps=64).wait_s
        for k in (1, 4, 16)
    ]
    assert waits == sorted(waits, reverse=True)
    assert math.isclose(waits[0] / waits[1], 2, rel_tol=0.5)  # the spread of a sum grows with the root of its steps
