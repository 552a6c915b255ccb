"""The fixed tree: whoever owns which subtree, the sum has the same bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from manyhands.comm import Comm, exact
from manyhands.comm.exact import ExactComm, join, subtrees
from manyhands.comm.self_ import SelfComm
from manyhands.comm.traced import TracedComm

LANES = st.integers(0, 6).map(lambda k: 2**k)


@given(LANES, st.data())
def test_subtrees_cover_the_lanes_in_order(lanes: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, lanes))
    spans = subtrees(lanes, size)
    assert len(spans) == size
    assert [lane for a, b in spans for lane in range(a, b)] == list(range(lanes))
    for a, b in spans:
        width = b - a
        assert width & (width - 1) == 0, "a whole subtree has a power of two lanes"
        assert a % width == 0, "and begins at one"
    widths = [b - a for a, b in spans]
    assert max(widths) <= 2 * min(widths), "as even as can be"


def _sum_of(leaves: list[Tensor]) -> Tensor:
    if len(leaves) == 1:
        return leaves[0]
    middle = len(leaves) // 2
    return _sum_of(leaves[:middle]) + _sum_of(leaves[middle:])


@given(LANES, st.data(), st.integers(0, 1000))
def test_joining_subtrees_is_summing_the_tree(lanes: int, data: st.DataObject, seed: int) -> None:
    size = data.draw(st.integers(1, lanes))
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(9, generator=generator) * 10.0 ** (lane % 7 - 3) for lane in range(lanes)]
    spans = subtrees(lanes, size)
    parts = [_sum_of(leaves[a:b]) for a, b in spans]
    assert torch.equal(join(parts, spans), _sum_of(leaves))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_every_number_of_ranks_gives_the_same_bits(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    leaves = [torch.randn(101, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i - 4) for i in range(8)]

    def work(comm: Comm) -> Tensor:
        a, b = subtrees(8, size)[comm.rank]
        t = _sum_of(leaves[a:b]).clone()
        ExactComm(comm, 8).all_reduce_(t)
        return t

    for found in ranks(work, size):
        assert torch.equal(found, _sum_of(leaves))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_sums_that_are_begun_and_sums_of_parts_have_these_bits_too(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    leaves = [torch.randn(101, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i - 4) for i in range(8)]
    parts = [_sum_of(leaves[a:b]).clone() for a, b in subtrees(8, size)]

    def work(comm: Comm) -> Tensor:
        fixed, t = ExactComm(comm, 8), parts[comm.rank].clone()
        ends = [fixed.begin_all_reduce_(t[a:b]) for a, b in ((60, 101), (20, 60), (0, 20))]
        for end in ends:
            end()
        return t

    for found in ranks(work, size):
        assert torch.equal(found, _sum_of(leaves))
    assert torch.equal(ExactComm(SelfComm(), 8, size).add(parts), _sum_of(leaves))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 101])
def test_chunks_of_a_tensor_have_the_bits_of_the_whole(  # type: ignore[no-untyped-def]
    ranks, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Only a chunk of every rank's tensor is in memory at once."""
    monkeypatch.setattr(exact, "CHUNK_BYTES", 32)
    parts = [torch.randn(length, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i - 2) for i in range(3)]

    def work(comm: Comm) -> tuple[Tensor, int]:
        traced, t = TracedComm(comm), parts[comm.rank].clone()
        ExactComm(traced, 4).all_reduce_(t)
        return t, traced.messages

    for total, messages in ranks(work, 3):
        assert torch.equal(total, join(parts, subtrees(4, 3)))
        assert messages == max(1, -(-length // 8))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_server_sums_the_workers_lanes(ranks, workers: int, servers: int) -> None:  # type: ignore[no-untyped-def]
    """The ranks behind the workers own no lanes."""
    leaves = [torch.randn(101, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i - 4) for i in range(8)]
    parts = [_sum_of(leaves[a:b]).clone() for a, b in subtrees(8, workers)]
    for found in ranks(lambda comm: ExactComm(comm, 8, workers).add(parts), workers + servers):
        assert torch.equal(found, _sum_of(leaves))


def test_another_order_would_give_other_bits() -> None:
    """Or the tests above would prove nothing."""
    leaves = [torch.randn(101, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i - 4) for i in range(8)]
    assert not torch.equal(sum(leaves[1:], start=leaves[0]), _sum_of(leaves))


def test_one_rank_alone_is_left_as_it_is() -> None:
    t = torch.tensor([1.5, -2.0])
    ExactComm(SelfComm(), 8).all_reduce_(t)
    assert t.tolist() == [1.5, -2.0]


def test_it_has_the_features_of_what_it_wraps() -> None:
    assert ExactComm(SelfComm(), 8).features == SelfComm.features
