"""Strategies whose workers step alone: what is averaged, when, and with whom."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from driving import distance, drive, make_replica, pulling, weights_of
from torch import Tensor

from manyhands import sync, tasks
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.replica.base import sum_of_lanes
from manyhands.tasks.setup import load_data
from manyhands.tasks.setup import make_replica as replica_of
from manyhands.training.plan import Plan

UNEVEN = {
    "a last batch of seven": {"batch_size": 10, "steps": 12},
    "fewer rows than workers": {"batch_size": 2, "steps": 6},
    "all at once": {"batch_size": "full", "steps": 3},
    "in pieces": {"batch_size": 30, "micro_batch": 4, "steps": 5},
}


@pytest.mark.parametrize("settings", UNEVEN.values(), ids=UNEVEN)
def test_averaging_after_every_step_of_sgd_is_serial(train, tmp_path: Path, settings) -> None:  # type: ignore[no-untyped-def]
    expected = weights_of(tmp_path, train(**settings, dtype="float64"))
    found = train(**settings, dtype="float64", engine="threads", workers=3, sync="local-sgd:period=1")
    assert distance(weights_of(tmp_path, found), expected) < 1e-12


def test_averaging_less_often_is_not(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Or the test above would prove nothing."""
    settings = {"batch_size": 10, "steps": 12, "dtype": "float64"}
    expected = weights_of(tmp_path, train(**settings))
    found = train(**settings, engine="threads", workers=3, sync="local-sgd:period=2")
    assert distance(weights_of(tmp_path, found), expected) > 1e-9


@pytest.mark.parametrize("period", [1, 2, 3, 5, 99])
def test_between_averagings_workers_differ_and_at_the_end_they_agree(ranks, period: int) -> None:  # type: ignore[no-untyped-def]
    steps, workers = 5, 3
    spreads: list[list[Tensor]] = [[] for _ in range(steps)]

    def work(comm: Comm) -> Tensor:
        replica, strategy = make_replica(), sync.make(f"local-sgd:period={period}")
        strategy.start(replica, comm)
        for i in range(steps):
            replica.grads.copy_(pulling(comm.rank, i, replica))
            strategy.step(replica, comm, i)
            spreads[i].append(replica.params.clone())
        strategy.finish(replica, comm)
        return replica.params

    found = ranks(work, workers)
    assert all(torch.equal(found[0], other) for other in found)
    for i, weights in enumerate(spreads):
        assert all(torch.equal(weights[0], w) for w in weights) == ((i + 1) % period == 0)


@pytest.mark.parametrize("settings", [{"epochs": 2}, {"steps": 13}, {"steps": 7}], ids=str)
@pytest.mark.parametrize("task", ["sigmoid", "adam"])
def test_averaging_per_epoch_is_a_period_of_an_epoch(train, tiny, tmp_path: Path, task: str, settings) -> None:  # type: ignore[no-untyped-def]
    """97 samples in batches of 10 are ten steps; an unfinished epoch is averaged at the end of the run."""
    own = {"engine": "threads", "workers": 3, "dtype": "float64", **settings}
    epochs, steps = (train(tiny(task), **own, sync=text) for text in ("average-epoch", "local-sgd:period=10"))
    assert distance(weights_of(tmp_path, epochs), weights_of(tmp_path, steps)) < 1e-14
    assert epochs.train_loss == pytest.approx(steps.train_loss, rel=1e-12)


@pytest.mark.parametrize(("workers", "task"), [(1, "mlp"), (2, "sigmoid"), (3, "adam")])
def test_averaging_once_is_the_mean_of_models_trained_alone(
    train, tiny, tmp_path: Path, task: str, workers: int
) -> None:  # type: ignore[no-untyped-def]
    settings = {"epochs": 2, "dtype": "float64", "batch_size": 10, "lr": 0.05}
    record = train(tiny(task), engine="threads", workers=workers, sync="average-once", **settings)
    config, own = make_config({"task": tiny(task), **settings}), tasks.load(tiny(task))
    data = load_data(own, config)
    models = []
    for rank in range(workers):
        replica = replica_of(own, config, data, torch.device("cpu"))
        plan = Plan(config, data.train, rank, workers, own_split=True)
        for step in range(plan.steps):
            batch = plan.batches(step // plan.steps_per_epoch)[step % plan.steps_per_epoch]
            sum_of_lanes(replica, plan.lanes(batch, step))
            replica.grads.mul_(workers)
            replica.apply()
        models.append(replica)
    mean = torch.stack([m.params for m in models]).mean(0)
    models[0].params.copy_(mean)
    named = models[0].module.state_dict()
    expected = torch.cat([named[name].flatten() for name in sorted(named)])
    assert distance(weights_of(tmp_path, record), expected) < 1e-13
    if workers > 1:
        assert distance(models[1].params, mean) > 1e-6, "they had been trained on different samples"


def _mix(ranks, size: int, steps: int) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """Let ranks with weights of their own gossip without any gradient; return all weights before and after."""

    def work(comm: Comm) -> tuple[Tensor, Tensor]:
        replica, strategy = make_replica(), sync.make("gossip")
        strategy.start(replica, comm)
        replica.params.copy_(make_replica(seed=comm.rank).params)
        before = replica.params.clone()
        for i in range(steps):
            replica.grads.zero_()
            strategy.step(replica, comm, i)
        return before, replica.params

    before, after = zip(*ranks(work, size), strict=True)
    return torch.stack(before), torch.stack(after)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_gossip_conserves_the_mean(ranks, size: int, steps: int) -> None:  # type: ignore[no-untyped-def]
    before, after = _mix(ranks, size, steps)
    torch.testing.assert_close(after.mean(0), before.mean(0), rtol=0, atol=1e-15)
    if size > 1:
        assert not torch.equal(before, after)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_gossip_comes_ever_nearer_to_the_mean(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    spread = [float(_mix(ranks, size, steps)[1].std(0).max()) for steps in (0, 1, 3, 60)]
    assert spread[0] > 0.01
    assert all(a >= b for a, b in pairwise(spread))
    assert spread[-1] < 1e-14


def test_two_gossips_average_exactly(ranks) -> None:  # type: ignore[no-untyped-def]
    before, after = _mix(ranks, 2, 1)
    assert torch.equal(after[0], after[1])
    assert torch.equal(after[0], (before[0] + before[1]) / 2)


def test_gossip_hears_from_both_neighbours_and_nobody_else(ranks) -> None:  # type: ignore[no-untyped-def]
    before, after = _mix(ranks, 5, 1)
    for rank in range(5):
        near = [before[(rank + d) % 5] for d in (-1, 0, 1)]
        torch.testing.assert_close(after[rank], torch.stack(near).mean(0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gossip_sends_the_weights_to_each_neighbour_once_a_step(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    steps, params = 4, make_replica().params
    end = 2 * params.nbytes * (size - 1) // size if size > 1 else 0
    for rank in drive(ranks, "gossip", size, partial(make_replica), pulling, steps):
        assert rank.comm.bytes_sent == steps * params.nbytes * min(2, size - 1) + end


@pytest.mark.parametrize("text", ["local-sgd", "average-epoch", "average-once", "gossip"])
def test_workers_that_step_alone_learn_together(train, text: str) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=3, sync=text, epochs=8)
    assert record.train_loss[-1] < 0.9 * record.train_loss[0]
