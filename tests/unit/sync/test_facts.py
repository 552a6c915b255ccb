"""What strategies say of themselves, held against what they do."""

from collections.abc import Callable
from math import inf

import pytest
from driving import NAMES, drive, make_replica, whole_numbers

from manyhands import sync
from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm

WORKERS = 3
SPECS = [*NAMES, "local-sgd:period=3", "parameter-server:servers=2", "async-server:servers=2"]


@pytest.mark.parametrize("text", SPECS)
def test_those_who_are_said_to_update_do(ranks: Callable, text: str) -> None:  # type: ignore[type-arg]
    found = drive(ranks, text, WORKERS, gradient=whole_numbers)
    num_weights = found[0].replica.update.num_weights
    spans = {
        rank: (update.start, min(update.stop, num_weights))
        for rank, update in enumerate(each.replica.update for each in found)
        if update.optimizer.state
    }
    match found[0].strategy.updates:
        case "all":
            assert spans == dict.fromkeys(range(WORKERS), (0, num_weights))
        case "slice":
            assert list(spans) == list(range(WORKERS))
        case "root":
            assert spans == {0: (0, num_weights)}
        case "servers":
            assert list(spans) == list(range(WORKERS, len(found)))
    if found[0].strategy.updates in ("slice", "servers"):
        starts, stops = zip(*spans.values(), strict=True)
        assert (0, *stops) == (*starts, num_weights), "the slices are all weights"


@pytest.mark.parametrize("text", SPECS)
def test_ranks_exchange_when_they_are_said_to(ranks: Callable, text: str) -> None:  # type: ignore[type-arg]
    steps, strategy = 12, sync.make(text)

    def work(comm: Comm) -> list[int]:
        """Return the steps in which this rank sent something, and -1 if it did at an epoch's end."""
        replica, traced, own = make_replica(), TracedComm(comm), sync.make(text)
        own.start(replica, traced)
        if comm.rank >= WORKERS:
            own.serve(replica, traced)
            return []
        sent = []
        for step in range(steps):
            traced.forget()
            own.step(replica, traced, step)
            sent += [step] if traced.bytes_sent else []
        traced.forget()
        own.end_epoch(replica, traced)
        sent += [-1] if traced.bytes_sent else []
        own.finish(replica, traced)
        return sent

    every = {"step": 1, "period": strategy.period, "epoch": inf, "end": inf}[strategy.exchanges]
    expected = [step for step in range(steps) if (step + 1) % every == 0]
    expected += [-1] if strategy.exchanges == "epoch" else []
    assert ranks(work, WORKERS + strategy.num_servers())[:WORKERS] == [expected] * WORKERS


@pytest.mark.parametrize("text", SPECS)
def test_a_pattern_is_that_of_strategies_whose_workers_are_apart_or_of_messages(text: str) -> None:
    strategy = sync.make(text)
    if strategy.pattern in ("mean", "ring"):
        assert (strategy.apart, strategy.updates) == (True, "all")
    if strategy.pattern in ("ring", "star"):
        assert "p2p" in strategy.requires
    if strategy.pattern == "star":
        assert strategy.updates in ("root", "servers")


def test_an_option_of_one_strategy_has_a_value_in_every_other() -> None:
    assert (sync.make("local-sgd:period=5").period, sync.make("allreduce").period) == (5, 1)
    assert (sync.make("async-server:replay=a").replay, sync.make("allreduce").replay) == ("a", "")
    assert sync.make("compressed").codec is not None
    assert sync.make("allreduce").codec is None
