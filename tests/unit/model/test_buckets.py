"""Buckets that are exchanged while the backward pass runs: start = max(ready, end of last)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.overlap import bucket_ends_s, last_end_s

BUCKETS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20)


def one_by_one(ready: list[float], cost: list[float]) -> list[float]:
    ends, last = [], 0.0
    for at, takes in zip(ready, cost, strict=True):
        last = max(at, last) + takes
        ends.append(last)
    return ends


@given(BUCKETS)
def test_the_recurrence(buckets: list[tuple[float, float]]) -> None:
    ready, cost = map(list, zip(*buckets, strict=True))
    assert bucket_ends_s(ready, cost).tolist() == pytest.approx(one_by_one(ready, cost))


def test_a_known_answer() -> None:
    assert bucket_ends_s([1.0, 2.0, 9.0], [3.0, 1.0, 0.5]).tolist() == [4.0, 5.0, 9.5]


@given(BUCKETS)
def test_never_earlier_than_either_part_nor_later_than_both_in_turn(buckets: list[tuple[float, float]]) -> None:
    ready, cost = map(np.array, zip(*buckets, strict=True))
    end = float(last_end_s(ready, cost))
    assert max(ready[-1] + cost[-1], cost.sum()) <= end + 1e-9
    assert end <= ready.max() + cost.sum() + 1e-9


def test_many_configurations_at_once() -> None:
    random = np.random.default_rng(0)
    ready, cost = random.random((5, 3, 7)), random.random((3, 7))
    ends = last_end_s(ready, cost)
    assert ends.shape == (5, 3)
    for i, j in np.ndindex(5, 3):
        assert ends[i, j] == pytest.approx(one_by_one(ready[i, j].tolist(), cost[j].tolist())[-1])
