"""How `verify` measures two sets of weights, and what it says of runs that are equal and that are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manyhands.config import make_config
from manyhands.run import resolve
from manyhands.verify import compare, likely_cause, verify

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


def test_batchnorm_parts_the_runs_and_is_named(tiny) -> None:  # type: ignore[no-untyped-def]
    verdict = verify(resolve(tiny("batchnorm"), {"engine": "threads", "workers": 3, "steps": 4}))
    assert not verdict.equal
    assert verdict.first_step == 1
    assert "BatchNorm" in verdict.cause
    assert "--exact" in verdict.cause


def test_uneven_batches_are_suspected_where_nothing_else_is(tiny) -> None:  # type: ignore[no-untyped-def]
    config = make_config({"task": tiny("mlp"), "engine": "threads", "workers": 3, "batch_size": 10})
    assert "uneven" in likely_cause(config, 1, [])
    even = config.model_copy(update={"batch_size": 9})
    distance = compare(np.zeros(1), np.ones(1), np.ones(1) + 1e-3)
    assert "order of summation" in likely_cause(even, 1, [distance])


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
