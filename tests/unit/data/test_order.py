"""Every sample once, in an order that the seed and the epoch decide, cut evenly."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data.order import batches, cut, num_batches, permutation

SEEDS = st.integers(0, 2**32 - 1)
EPOCHS = st.integers(0, 10_000)


@given(st.integers(0, 300), SEEDS, EPOCHS)
@settings(deadline=None)
def test_permutation_depends_on_seed_and_epoch_alone(n: int, seed: int, epoch: int) -> None:
    first = permutation(n, seed, epoch)
    torch.manual_seed(seed + 1)
    np.random.default_rng(seed).random(3)
    assert first.dtype == torch.int64
    assert permutation(n, seed, epoch).equal(first)
    assert sorted(first.tolist()) == list(range(n))


@given(SEEDS, EPOCHS)
@settings(deadline=None)
def test_each_seed_and_epoch_has_its_own_order(seed: int, epoch: int) -> None:
    order = permutation(200, seed, epoch)
    assert not permutation(200, seed, epoch + 1).equal(order)
    assert not permutation(200, (seed + 1) % 2**32, epoch).equal(order)


def test_order_is_the_same_on_every_machine_and_release() -> None:
    assert permutation(10, seed=1, epoch=2).tolist() == [8, 5, 6, 0, 9, 1, 4, 3, 7, 2]


@given(st.integers(0, 200), st.integers(1, 220), SEEDS, EPOCHS)
@settings(deadline=None)
def test_batches_hold_each_sample_once(n: int, batch_size: int, seed: int, epoch: int) -> None:
    chunks = batches(n, batch_size, seed, epoch)
    assert len(chunks) == num_batches(n, batch_size)
    rows = [torch.arange(n)[chunk] for chunk in chunks]
    assert sorted(torch.cat([torch.empty(0, dtype=torch.int64), *rows]).tolist()) == list(range(n))
    assert all(len(r) == batch_size for r in rows[:-1])
    assert all(1 <= len(r) <= batch_size for r in rows)


@given(st.integers(2, 200), st.data(), SEEDS, EPOCHS)
@settings(deadline=None)
def test_batches_are_cuts_of_the_permutation(n: int, data: st.DataObject, seed: int, epoch: int) -> None:
    chunks = batches(n, data.draw(st.integers(1, n - 1)), seed, epoch)
    assert torch.cat([torch.arange(n)[chunk] for chunk in chunks]).equal(permutation(n, seed, epoch))


@given(st.integers(1, 200), st.integers(0, 5))
@settings(deadline=None)
def test_one_batch_of_everything_is_a_slice(n: int, more: int) -> None:
    assert batches(n, n + more, 0, 0) == [slice(0, n)]


@given(st.integers(0, 1000), st.integers(1, 70))
@settings(deadline=None)
def test_parts_are_disjoint_complete_contiguous_and_even(length: int, parts: int) -> None:
    cuts = [cut(length, parts, index) for index in range(parts)]
    edges = [0, *(stop for _, stop in cuts)]
    assert [start for start, _ in cuts] == edges[:-1]
    assert edges[-1] == length
    sizes = [stop - start for start, stop in cuts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
