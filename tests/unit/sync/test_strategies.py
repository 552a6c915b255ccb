"""What every strategy does at its start, in one step and at its end, seen from its ranks."""

import dataclasses
import inspect

import pytest
import torch
from torch import Tensor, nn

from manyhands import registry, sync
from manyhands.comm import Comm
from manyhands.errors import UserError
from manyhands.replica import Replica, build
from manyhands.sync import Sync
from manyhands.sync.base import check_features

NAMES = registry.names(sync, Sync)
EXACT = [name for name in NAMES if sync.make(name).exact]


def _replica(seed: int) -> Replica:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return build(
        module, torch.zeros(1, 3), "cross-entropy", lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_starts_with_the_first_ones_weights(ranks, name: str, size: int) -> None:  # type: ignore[no-untyped-def]
    replicas = [_replica(seed) for seed in range(size)]
    expected = replicas[0].params.clone()
    ranks(lambda comm: sync.make(name).start(replicas[comm.rank], comm), size)
    assert all(torch.equal(r.params, expected) for r in replicas)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", EXACT)
def test_exact_strategies_apply_the_sum_of_the_gradients(ranks, name: str, size: int) -> None:  # type: ignore[no-untyped-def]
    """Three steps with momentum on made-up gradients, whole numbers so that their order does not matter."""
    replicas, alone = [_replica(0) for _ in range(size)], _replica(0)

    def gradient(rank: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        return torch.randint(-8, 9, alone.grads.shape, generator=generator).double()

    def work(comm: Comm) -> None:
        strategy, replica = sync.make(name), replicas[comm.rank]
        strategy.start(replica, comm)
        for step in range(3):
            replica.grads.copy_(gradient(comm.rank, step))
            strategy.step(replica, comm, step)
        strategy.finish(replica, comm)

    ranks(work, size)
    for step in range(3):
        alone.grads.copy_(torch.stack([gradient(r, step) for r in range(size)]).sum(0))
        alone.apply()
    for replica in replicas:
        torch.testing.assert_close(replica.params, alone.params, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_says_what_it_is_and_explains_its_options(name: str) -> None:
    strategy = sync.make(name)
    assert isinstance(strategy.exact, bool)
    assert strategy.requires <= {"p2p", "any-source", "split"}
    assert dataclasses.is_dataclass(strategy)
    assert inspect.getdoc(type(strategy))


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="no_such"):
        sync.make(f"{name}:no_such=1")


def test_an_engine_without_what_a_strategy_needs_is_named() -> None:
    class Needy:
        requires = frozenset({"split", "any-source"})

    with pytest.raises(UserError, match="needs any-source, split, which engine 'hybrid' does not have"):
        check_features(Needy(), frozenset({"p2p"}), "hybrid")  # type: ignore[arg-type]
    check_features(Needy(), frozenset({"p2p", "split", "any-source"}), "mpi")  # type: ignore[arg-type]
