"""Dedicated ranks hold the weights and the optimiser's state, cut over them; workers hold none of it."""

from functools import partial
from pathlib import Path

import pytest
import torch
from driving import (
    QUANTITIES,
    alone,
    distance,
    drive,
    make_replica,
    normed,
    smallest,
    stack,
    state_elements,
    weights_of,
)

from manyhands import sync
from manyhands.comm import Comm

SERVERS = pytest.mark.parametrize("servers", [1, 2, 3])


@SERVERS
@pytest.mark.parametrize("optimizer", QUANTITIES)
@pytest.mark.parametrize("module", [stack, normed, smallest])
def test_servers_hold_their_slice_of_the_state(ranks, module, optimizer: str, servers: int) -> None:  # type: ignore[no-untyped-def]
    make = partial(make_replica, module, optimizer)
    found = drive(ranks, f"parameter-server:servers={servers}", 2, make)
    held = [state_elements(rank.replica) for rank in found]
    assert held[:2] == [0, 0], "a worker steps nothing"
    assert sum(held[2:]) == QUANTITIES[optimizer] * make().update.num_weights
    spans = [(rank.replica.update.start, rank.replica.update.stop) for rank in found[2:]]
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == make().params.numel()


@SERVERS
def test_a_server_changes_its_slice_alone(ranks, servers: int) -> None:  # type: ignore[no-untyped-def]
    found = drive(ranks, f"parameter-server:servers={servers}", 2)
    before, after = make_replica().params, found[0].replica.params
    for rank in found[2:]:
        start, stop = rank.replica.update.start, rank.replica.update.stop
        assert torch.equal(rank.replica.params[start:stop], after[start:stop])
        assert torch.equal(rank.replica.params[:start], before[:start])
        assert torch.equal(rank.replica.params[stop:], before[stop:])


@SERVERS
@pytest.mark.parametrize("module", [stack, normed, smallest])
def test_the_first_worker_is_given_the_whole_state(ranks, module, servers: int) -> None:  # type: ignore[no-untyped-def]
    make = partial(make_replica, module, "adam")
    expected = alone(1, make, steps=1).update.moments()

    def work(comm: Comm):  # type: ignore[no-untyped-def]
        strategy, replica = sync.make(f"parameter-server:servers={servers}"), make()
        strategy.start(replica, comm)
        if comm.rank >= 2:
            strategy.serve(replica, comm)
            return None
        replica.grads.copy_(alone(1, make, steps=1).grads if comm.rank == 0 else torch.zeros_like(replica.grads))
        strategy.step(replica, comm, 0)
        moments = strategy.moments(replica, comm)
        strategy.finish(replica, comm)
        return moments

    elements, scalars = ranks(work, 2 + servers)[0]
    torch.testing.assert_close(elements, expected.elements, rtol=1e-13, atol=1e-15)
    assert torch.equal(scalars, expected.scalars)


@SERVERS
@pytest.mark.parametrize(("workers", "task"), [(1, "sigmoid"), (3, "adam")])
def test_it_gives_the_serial_answer(train, tiny, tmp_path: Path, task: str, workers: int, servers: int) -> None:  # type: ignore[no-untyped-def]
    settings = {"steps": 12, "dtype": "float64"}
    expected = weights_of(tmp_path, train(tiny(task), **settings))
    text = f"parameter-server:servers={servers}"
    record = train(tiny(task), **settings, engine="threads", workers=workers, sync=text)
    assert distance(weights_of(tmp_path, record), expected) < 1e-12
    assert [rank.role for rank in record.ranks] == ["worker"] * workers + ["server"] * servers
    assert [rank.rank for rank in record.ranks] == list(range(workers + servers))
    assert record.workers == workers


@SERVERS
def test_a_step_sends_a_gradient_up_and_the_weights_down(ranks, servers: int) -> None:  # type: ignore[no-untyped-def]
    """Beside the values, each message of a worker has a few words; the last of them say that it is done."""
    steps, workers, size = 4, 3, 238 * 8
    found = drive(ranks, f"parameter-server:servers={servers}", workers, steps=steps)
    for rank in found[:workers]:
        words = rank.comm.bytes_sent - (steps + 1) * size
        assert 0 < words <= (steps + 1) * servers * 4 * 8
    assert sum(rank.comm.bytes_sent for rank in found[workers:]) == steps * workers * size
