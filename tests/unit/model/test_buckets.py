"""Buckets that are exchanged while the backward pass runs: start = max(ready, end of last)."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.links import Floats
from manyhands.model.overlap import bucket_end_s

BUCKETS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20)


def last_end_s(ready: Floats, cost: Floats) -> Floats:
    """Return when the last of buckets ends that lie along the last axis."""
    pairs = zip(np.moveaxis(ready, -1, 0), np.moveaxis(cost, -1, 0), strict=True)
    return reduce(lambda last, pair: bucket_end_s(pair[0], last, pair[1]), pairs, np.zeros(()))


def test_a_known_answer() -> None:
    ready, cost = np.array([1.0, 2.0, 9.0]), np.array([3.0, 1.0, 0.5])
    assert [float(last_end_s(ready[:k], cost[:k])) for k in (1, 2, 3)] == [4.0, 5.0, 9.5]


@given(BUCKETS)
def test_the_end_is_that_of_the_longest_way(buckets: list[tuple[float, float]]) -> None:
    ready, cost = map(np.array, zip(*buckets, strict=True))
    ways = [ready[i] + cost[i:].sum() for i in range(len(buckets))]  # from a bucket on, none waits to be ready
    assert float(last_end_s(ready, cost)) == pytest.approx(max(ways))


def test_many_configurations_at_once() -> None:
    random = np.random.default_rng(0)
    ready, cost = random.random((5, 3, 7)), random.random((5, 3, 7))
    ends = last_end_s(ready, cost)
    assert ends.shape == (5, 3)
    for i, j in np.ndindex(5, 3):
        assert ends[i, j] == pytest.approx(float(last_end_s(ready[i, j], cost[i, j])))
