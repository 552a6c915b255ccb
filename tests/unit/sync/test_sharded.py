"""Every rank keeps the optimiser state of its own slice, and no more."""

from functools import partial

import pytest
import torch
from driving import QUANTITIES, alone, drive, make_replica, normed, smallest, stack, state_elements

from manyhands.replica import Replica
from manyhands.replica.update import ALIGNED


def _widest(total: int, size: int) -> int:
    """Return the share of one rank, rounded up so that vectors are cut alike everywhere."""
    return min(total, -(-total // (size * ALIGNED)) * ALIGNED)


@pytest.mark.parametrize("optimizer", QUANTITIES)
@pytest.mark.parametrize("module", [stack, normed, smallest])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_state_is_shared_out(ranks, module, optimizer: str, size: int) -> None:  # type: ignore[no-untyped-def]
    make = partial(make_replica, module, optimizer)
    held = [state_elements(rank.replica) for rank in drive(ranks, "sharded", size, make)]
    weights, total = make().update.num_weights, make().params.numel()
    assert sum(held) == QUANTITIES[optimizer] * weights, "each weight's state is held once"
    assert max(held) <= QUANTITIES[optimizer] * _widest(total, size)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("module", [stack, normed, smallest])
def test_the_gathered_state_is_the_state_of_one_rank(ranks, module, optimizer: str) -> None:  # type: ignore[no-untyped-def]
    make = partial(make_replica, module, optimizer)
    workers = drive(ranks, "sharded", 5, make)
    expected = alone(5, make).update.moments()
    found = ranks(lambda comm: workers[comm.rank].strategy.moments(workers[comm.rank].replica, comm), 5)
    for elements, scalars in found:
        torch.testing.assert_close(elements, expected.elements, rtol=1e-13, atol=1e-15)
        assert torch.equal(scalars, expected.scalars)


def test_a_rank_changes_its_own_slice_before_it_gathers_the_others(ranks) -> None:  # type: ignore[no-untyped-def]
    """The optimiser of rank 1 never saw the first weight: its state is not even there."""
    workers = drive(ranks, "sharded", 2, partial(make_replica, optimizer="adam"))
    spans = [(w.replica.update.start, w.replica.update.stop) for w in workers]
    assert spans[0][1] == spans[1][0]
    assert (spans[0][0], spans[1][1]) == (0, workers[0].replica.params.numel())


@pytest.mark.parametrize(("task", "quantities"), [("mlp", 0), ("sigmoid", 1), ("adam", 2)])
def test_the_record_tells_the_bytes_of_each_rank(train, tiny, task: str, quantities: int) -> None:  # type: ignore[no-untyped-def]
    record = train(tiny(task), engine="threads", workers=3, sync="sharded", steps=2)
    told = [rank.notes["optimizer_bytes"] for rank in record.ranks]
    assert sum(told) == 4 * quantities * record.parameters
    assert max(told) <= 4 * quantities * _widest(record.parameters, 3)


@pytest.mark.parametrize("text", ["sharded", "parameter-server:servers=2"])
@pytest.mark.parametrize("task", ["adam", "dropout"])
@pytest.mark.parametrize("workers", [3, 5])
def test_many_steps_of_a_shared_optimiser_have_the_bits_of_serial(
    train, tiny, text: str, task: str, workers: int
) -> None:  # type: ignore[no-untyped-def]
    """A fused Adam rounds the last values of a tensor otherwise, so where slices end must not matter."""
    settings = {"exact": True, "epochs": 2}
    expected = train(tiny(task), **settings)
    assert train(tiny(task), **settings, engine="threads", workers=workers, sync=text).weights_sha256 == (
        expected.weights_sha256
    )


def test_the_state_would_differ_without_sharding(ranks) -> None:  # type: ignore[no-untyped-def]
    """Or the count above would prove nothing."""

    def make() -> Replica:
        return make_replica(optimizer="adam")

    held = [state_elements(rank.replica) for rank in drive(ranks, "allreduce", 2, make)]
    assert held == [2 * 238, 2 * 238]
