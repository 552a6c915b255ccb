"""How `verify` measures two sets of weights, and what it says of runs that are equal and that are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manyhands import Task, tasks
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.replica import Replica
from manyhands.replica.peers import Peers
from manyhands.run import resolve
from manyhands.sync import allreduce
from manyhands.verification.roundoff import distances, round_off_bound
from manyhands.verification.verify import compare, possible_causes, verify

KINDS = [np.float32, np.float64]


def _ulps(a: float, b: float, kind: type) -> int:
    start = np.zeros(2, kind)
    return compare(start, np.array([a, 1], kind), np.array([b, 1], kind)).ulps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1.5, 1e-30, -3e7, 2.0])
def test_neighbours_are_one_apart(kind: type, value: float) -> None:
    value = kind(value)
    above, below = np.nextafter(value, kind(np.inf)), np.nextafter(value, kind(-np.inf))
    assert _ulps(value, above, kind) == _ulps(above, value, kind) == 1
    assert _ulps(value, below, kind) == 1
    assert _ulps(below, above, kind) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_zero_is_crossed_without_a_jump(kind: type) -> None:
    tiny = np.nextafter(kind(0), kind(1))
    assert _ulps(-tiny, tiny, kind) == 2
    assert _ulps(-0.0, tiny, kind) == 1
    assert _ulps(0.0, -tiny, kind) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_zeros_are_equal(kind: type) -> None:
    assert _ulps(-0.0, 0.0, kind) == 0


@given(st.sampled_from(KINDS), st.data())
def test_ulps_count_the_numbers_between(kind: type, data: st.DataObject) -> None:
    value = kind(data.draw(st.floats(-(2.0**100), 2.0**100, width=32)))
    steps = data.draw(st.integers(0, 20))
    other = value
    for _ in range(steps):
        other = np.nextafter(other, kind(np.inf))
    assert _ulps(value, other, kind) == steps


@given(st.sampled_from(KINDS), st.data())
def test_ulps_are_a_distance(kind: type, data: st.DataObject) -> None:
    numbers = st.floats(-(2.0**100), 2.0**100, width=32)
    a, b = data.draw(numbers), data.draw(numbers)
    assert _ulps(a, b, kind) == _ulps(b, a, kind)
    assert _ulps(a, b, kind) >= 0
    assert (_ulps(a, b, kind) == 0) == (a == b)


@given(hnp.arrays(np.float64, 5, elements=st.floats(-100, 100)), st.floats(1e-6, 10))
def test_the_share_is_that_of_what_training_changed(start: np.ndarray, length: float) -> None:  # type: ignore[type-arg]
    expected = start + np.array([length, 0, 0, 0, 0])
    found = start + np.array([length, 0, 0.01 * length, 0, 0])
    assert compare(start, expected, found).share == pytest.approx(0.01, rel=1e-3)


def test_equal_weights_are_not_apart_at_all() -> None:
    weights = np.array([1.0, -0.0, 3e-40], np.float32)
    found = compare(np.zeros(3, np.float32), weights, weights.copy())
    assert (found.ulps, found.relative, found.share) == (0, 0.0, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_opposite_sign_are_far_apart(kind: type) -> None:
    assert _ulps(-4.0, 4.0, kind) > _ulps(-2.0, 2.0, kind) > _ulps(-1.0, 1.0, kind) > _ulps(0.0, 1.0, kind) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_all_zero_can_be_compared(kind: type) -> None:
    found = compare(np.ones(2, kind), np.zeros(2, kind), np.full(2, 4, kind))
    assert found.ulps > 0
    assert found.relative > 1


def test_a_difference_where_nothing_was_trained_is_infinite() -> None:
    start = np.ones(3)
    assert compare(start, start, start + 1e-9).share == np.inf


def test_threads_are_equal_to_serial_to_round_off(tiny) -> None:  # type: ignore[no-untyped-def]
    verdict = verify(resolve(tiny("dropout"), {"engine": "threads", "workers": 3, "steps": 6}))
    assert verdict.equal
    assert (verdict.first_step, verdict.cause, verdict.steps) == (None, "", 6)
    assert verdict.serial.engine == "serial"
    assert verdict.parallel.workers == 3


def test_exact_is_equal_in_every_bit(tiny) -> None:  # type: ignore[no-untyped-def]
    verdict = verify(resolve(tiny("conv"), {"engine": "threads", "workers": 3, "steps": 4, "exact": True}))
    assert (verdict.equal, verdict.bit_equal, verdict.max_ulps) == (True, True, 0)
    assert verdict.serial.weights_sha256 == verdict.parallel.weights_sha256


def test_batchnorm_over_the_global_batch_is_equal(tiny) -> None:  # type: ignore[no-untyped-def]
    for dtype in ("float32", "float64"):
        verdict = verify(resolve(tiny("batchnorm"), {"engine": "threads", "workers": 3, "steps": 4, "dtype": dtype}))
        assert verdict.equal, verdict.candidates
        assert "first weights differ in the last digit" in verdict.bound_from
        assert verdict.share_of_change < {"float32": 1e-5, "float64": 1e-13}[dtype]


def test_initial_weights_and_patience_change_no_verdict(tiny, tmp_path, train) -> None:  # type: ignore[no-untyped-def]
    """The runs that round-off is measured by begin with other last digits, also of weights that a file gives."""
    first = train(tiny("batchnorm"), steps=3)
    settings = {"engine": "threads", "workers": 3, "steps": 6, "eval_steps": 1, "patience": 1, "lr": 0.5}
    verdict = verify(resolve(tiny("batchnorm"), {**settings, "init": first.id}, out=tmp_path))
    assert (verdict.equal, verdict.steps, verdict.serial.steps) == (True, 6, 6)
    assert "begin" in verdict.bound_from or "first weights" in verdict.bound_from
    assert verdict.bound > 1e-6


def test_batchnorm_over_slices_is_not_taken_for_round_off(tiny, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Layers that promise the global batch and see a slice of it are found out."""
    monkeypatch.setattr(Peers, "join", lambda peers, comm: None)
    verdict = verify(resolve(tiny("batchnorm"), {"engine": "threads", "workers": 3, "steps": 4}))
    assert not verdict.equal
    assert verdict.tensor_share > 100 * verdict.bound


@pytest.mark.parametrize("task", ["conv", "batchnorm"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_short_products_are_equal_within_their_bound(precision: str, task: str, tiny) -> None:  # type: ignore[no-untyped-def]
    settings = {"engine": "threads", "workers": 3, "steps": 6, "batch_size": 10, "precision": precision}
    verdict = verify(resolve(tiny(task), settings))
    assert verdict.equal, (verdict.tensor, verdict.tensor_share, verdict.bound)
    assert verdict.precision_gap is not None
    assert verdict.share_of_change < 0.1
    assert 0 < verdict.precision_gap < 0.2
    assert verdict.precision.startswith(f"{precision} keeps {8 if precision == 'bf16' else 11} bits: ")


def test_fp32_has_no_gap_and_tf32_none_on_a_cpu(tiny) -> None:  # type: ignore[no-untyped-def]
    plain, tf32 = (
        verify(resolve(tiny("mlp"), {"engine": "threads", "workers": 2, "steps": 2, "precision": precision}))
        for precision in ("fp32", "tf32")
    )
    assert (plain.precision, plain.precision_gap) == ("", None)
    assert (tf32.precision, tf32.precision_gap) == ("tf32 made no difference to fp32 here", 0.0)


def test_batchnorm_parts_the_runs_and_is_named(tiny) -> None:  # type: ignore[no-untyped-def]
    settings = {"engine": "threads", "workers": 3, "steps": 4, "batchnorm": "local"}
    verdict = verify(resolve(tiny("batchnorm"), settings))
    assert not verdict.equal
    assert verdict.first_step == 1
    assert "BatchNorm" in verdict.cause
    assert "--exact" in verdict.cause


def test_uneven_batches_are_suspected_where_nothing_else_is(tiny) -> None:  # type: ignore[no-untyped-def]
    config = make_config({"task": tiny("mlp"), "engine": "threads", "workers": 3, "batch_size": 10})
    assert [cause.split(":")[0] for cause in possible_causes(config, tasks.load(config.task), 10, 1)] == [
        "an uneven batch",
        "a fault of sync 'allreduce' or of engine 'threads'",
    ]
    assert len(possible_causes(config, tasks.load(config.task), 9, 1)) == 1


def test_what_is_the_tasks_own_is_suspected() -> None:
    own = Task(model=lambda data: None, data=lambda: None, loss=lambda out, y: out, optimizer=lambda params, lr: None)  # type: ignore[arg-type, return-value]
    config = make_config({"task": "own", "engine": "threads", "workers": 2, "batch_size": 10})
    assert [cause.split(":")[0] for cause in possible_causes(config, own, 10, 1)][:3] == [
        "different data",
        "the optimiser",
        "the loss",
    ]


def test_steps_are_compared_one_by_one(tiny) -> None:  # type: ignore[no-untyped-def]
    verdict = verify(resolve(tiny("mlp"), {"engine": "threads", "workers": 2}), steps=3)
    assert verdict.steps == verdict.serial.steps == verdict.parallel.steps == 3


@pytest.mark.parametrize("sync", ["parameter-server:servers=2", "sharded", "overlap:bucket=20", "gather-server"])
def test_exact_strategies_are_held_to_one_worker(tiny, sync: str) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 3, "steps": 4, "sync": sync, "exact": True}
    verdict = verify(resolve(tiny("adam"), options))
    assert verdict.bit_equal
    assert verdict.serial.sync == "allreduce"


def test_a_strategy_that_promises_nothing_is_named_as_the_cause(tiny) -> None:  # type: ignore[no-untyped-def]
    verdict = verify(resolve(tiny("mlp"), {"engine": "threads", "workers": 3, "steps": 6, "sync": "local-sgd"}))
    assert not verdict.equal
    assert "'local-sgd' does not promise the serial answer" in verdict.cause


NETWORKS = ["mlp", "sigmoid", "adam", "dropout", "conv"]
EXACT = ["allreduce", "sharded", "parameter-server:servers=2", "overlap:bucket=20", "gather-server", "reduce-broadcast"]


@pytest.mark.parametrize(
    ("network", "sync"), [*((network, "sharded") for network in NETWORKS), *(("adam", sync) for sync in EXACT)]
)
def test_round_off_is_called_round_off(tiny, network: str, sync: str) -> None:  # type: ignore[no-untyped-def]
    verdict = verify(resolve(tiny(network), {"engine": "threads", "workers": 3, "steps": 12, "sync": sync}))
    assert verdict.equal, f"{verdict.tensor}: {verdict.tensor_share} > {verdict.bound}"
    assert verdict.tensor_share <= verdict.bound < 1e-3
    assert verdict.bound_from.startswith("16 × the distance of serial runs that add up 3 and 4 slices of each batch")


def test_round_off_may_grow_with_the_steps_as_it_does_in_serial_runs(tiny) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 2, "steps": 110, "lr": 3.0}
    verdict = verify(resolve(tiny("mlp"), options))
    assert verdict.equal
    assert verdict.share_of_change > 1e-4, "it has grown"


def test_runs_that_part_by_themselves_are_not_called_equal(tiny) -> None:  # type: ignore[no-untyped-def]
    verdict = verify(resolve(tiny("mlp"), {"engine": "threads", "workers": 2, "steps": 150, "lr": 3.0}))
    assert not verdict.equal
    assert verdict.tensor_share <= verdict.bound
    assert "cannot be told" in verdict.cause


PLANTED = {"mlp": "1.bias", "sigmoid": "3.weight", "adam": "5.weight", "dropout": "6.bias", "conv": "0.weight"}


@pytest.mark.parametrize("network", PLANTED)
def test_an_error_of_a_thousandth_in_one_tensor_of_one_step_is_found(tiny, network: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    real = allreduce.AllReduce.step

    def wrong(self: allreduce.AllReduce, replica: Replica, comm: Comm, i: int) -> None:
        before = replica.params.clone()
        real(self, replica, comm, i)
        if comm.size > 1 and i == 3:
            start, stop = replica.spans[PLANTED[network]]
            replica.params[start:stop] += 1e-3 * (replica.params - before)[start:stop]

    monkeypatch.setattr(allreduce.AllReduce, "step", wrong)
    verdict = verify(resolve(tiny(network), {"engine": "threads", "workers": 2, "steps": 6}))
    assert (verdict.equal, verdict.first_step, verdict.tensor) == (False, 4, PLANTED[network])
    assert verdict.tensor_share > verdict.bound > 0
    assert verdict.cause == ""
    assert verdict.candidates[-1] == "a fault of sync 'allreduce' or of engine 'threads'"


def test_the_first_tensor_that_has_another_bit_is_named(tiny, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    real = allreduce.AllReduce.step

    def wrong(self: allreduce.AllReduce, replica: Replica, comm: Comm, i: int) -> None:
        real(self, replica, comm, i)
        if comm.size > 1 and i == 1:
            last = replica.spans["3.bias"][1] - 1
            replica.params[last] *= 1 + 1e-6

    monkeypatch.setattr(allreduce.AllReduce, "step", wrong)
    verdict = verify(resolve(tiny("mlp"), {"engine": "threads", "workers": 2, "steps": 4, "exact": True}))
    assert (verdict.equal, verdict.first_step, verdict.tensor, verdict.bound) == (False, 2, "3.bias", 0.0)


def test_batchnorm_and_other_strategies_are_far_beyond_round_off(tiny) -> None:  # type: ignore[no-untyped-def]
    for options in ({"task": "batchnorm", "batchnorm": "local"}, {"task": "mlp", "sync": "local-sgd"}):
        settings = {"engine": "threads", "workers": 3, "steps": 4, **options}
        verdict = verify(resolve(tiny(str(settings.pop("task"))), settings))
        assert verdict.first_step == 1
        assert verdict.tensor_share > 100 * verdict.bound


def _walk(seed: int, size: float, steps: int = 9, weights: int = 40) -> np.ndarray:  # type: ignore[type-arg]
    drawn = np.random.default_rng(seed).normal(size=(steps, weights))
    return np.cumsum(size * drawn, axis=0)


@given(st.integers(0, 99), st.sampled_from(KINDS))
def test_runs_that_part_as_the_permuted_ones_do_are_within_the_bound(seed: int, kind: type) -> None:
    start, path = np.ones(40, kind), 1 + _walk(seed, 0.1)
    runs = [(path + _walk(1000 + seed + i, 1e-6)).astype(kind) for i in range(4)]
    bound = round_off_bound(start, runs[0], runs[1:3], [0, 5])
    assert (distances(runs[0], runs[3], [0, 5]) <= bound).all()
    far = runs[0] + _walk(seed, 0.01).astype(kind)
    assert (distances(runs[0], far, [0, 5]) > bound).all()


@given(st.integers(0, 99), st.sampled_from(KINDS))
def test_last_digits_are_within_the_bound_where_the_permuted_runs_agree(seed: int, kind: type) -> None:
    start, run = np.ones(40, kind), (1 + _walk(seed, 0.1)).astype(kind)
    next_ = np.nextafter(run, kind(np.inf))
    bound = round_off_bound(start, run, [run, run], [0, 1])
    assert (distances(run, next_, [0, 1])[:, 0] <= bound[:, 0]).all()
    assert (distances(run, run * (1 + kind(1e-3)), [0, 1]) > bound).all()
