"""What every strategy does at its start, in one step and at its end, seen from its ranks."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import torch
from driving import EXACT, NAMES, alone, distance, drive, make_replica, normed, pulling, smallest, weights_of
from safetensors.torch import load_file

from manyhands import launch, sync
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.errors import UserError
from manyhands.record.run import RunDir, open_run
from manyhands.run import ignore
from manyhands.sync.base import check_features
from manyhands.training.job import Job
from manyhands.training.loop import train_rank

FEATURES = {"p2p", "any-source", "split", "servers"}
VARIANTS = (
    "parameter-server:servers=2",
    "parameter-server:servers=3",
    "overlap:bucket=1",
    "overlap:bucket=7",
    "overlap:bucket=999",
)
APART = [name for name in NAMES if sync.make(name).apart]


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_starts_with_the_first_ones_weights(ranks, name: str, size: int) -> None:  # type: ignore[no-untyped-def]
    size += sync.make(name).num_servers()
    replicas = [make_replica(seed=seed) for seed in range(size)]
    expected = replicas[0].params.clone()
    ranks(lambda comm: sync.make(name).start(replicas[comm.rank], comm), size)
    assert all(torch.equal(r.params, expected) for r in replicas)


@pytest.mark.parametrize(("size", "optimizer"), [(1, "adam"), (2, "momentum"), (3, "adam"), (5, "momentum")])
@pytest.mark.parametrize("text", [*EXACT, *VARIANTS])
def test_exact_strategies_apply_the_sum_of_the_gradients(ranks, text: str, size: int, optimizer: str) -> None:  # type: ignore[no-untyped-def]
    """Three steps on made-up gradients, whole numbers so that their order does not matter."""

    def make():  # type: ignore[no-untyped-def]
        return make_replica(optimizer=optimizer)

    expected = alone(size, make).params
    for rank in drive(ranks, text, size, make)[:size]:
        torch.testing.assert_close(rank.replica.params, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("module", [normed, smallest])
@pytest.mark.parametrize("text", [*EXACT, *VARIANTS])
def test_exact_strategies_carry_statistics_and_fewer_weights_than_ranks(ranks, text: str, module) -> None:  # type: ignore[no-untyped-def]
    """The statistics behind the weights move by the sum of the moves; a rank may have nothing to hold."""

    def make():  # type: ignore[no-untyped-def]
        return make_replica(module, "adam")

    expected = alone(5, make).params
    for rank in drive(ranks, text, 5, make)[:5]:
        torch.testing.assert_close(rank.replica.params, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_workers_agree_at_the_end(ranks, name: str, size: int) -> None:  # type: ignore[no-untyped-def]
    """Each is pulled elsewhere, and the run ends between two averagings."""
    workers = drive(ranks, name, size, gradient=pulling, steps=5)[:size]
    for rank in workers:
        assert torch.equal(rank.replica.params, workers[0].replica.params)
    assert not torch.equal(workers[0].replica.params, make_replica().params), "they moved"


@pytest.mark.parametrize("settings", [{"batch_size": 30, "epochs": 2}, {"batch_size": 2, "steps": 5}])
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_has_counted_every_batch(tiny, tmp_path: Path, name: str, settings: dict[str, int]) -> None:  # type: ignore[no-untyped-def]
    """BatchNorm's counter is a copy in the module; uneven and empty slices count as shares of a batch."""
    own = {"task": tiny("batchnorm"), "engine": "threads", "workers": 3, "sync": name}
    run, config = RunDir(tmp_path / "run"), make_config({**own, **settings})
    open_run(run, config)
    records = launch.make("threads").launch(train_rank, Job(config, run), ignore)[:3]
    assert int(load_file(run.model)["1.num_batches_tracked"]) == records[0]["steps"]
    assert len({r["weights_sha256"] for r in records}) == 1


@pytest.mark.parametrize("name", APART)
def test_looking_at_the_settled_weights_changes_nothing(train, name: str) -> None:  # type: ignore[no-untyped-def]
    """An evaluation in between tests the weights with which the run would end then, and puts the own ones back."""
    settings = {"engine": "threads", "workers": 3, "epochs": 3, "sync": name}
    assert train(**settings, eval_every=1).weights_sha256 == train(**settings, eval_every=9).weights_sha256


@pytest.mark.parametrize("settings", [{"lr_decay": "cosine", "warmup": 0.7}, {"lr_decay": "linear"}])
@pytest.mark.parametrize("name", EXACT)
def test_exact_strategies_warm_up_and_decay_to_the_bit(train, name: str, settings: dict[str, object]) -> None:  # type: ignore[no-untyped-def]
    """Wherever the optimiser acts, it must have the same learning rate, as a double."""
    expected = train(steps=14, exact=True, **settings)
    found = train(steps=14, exact=True, engine="threads", workers=3, sync=name, **settings)
    assert found.weights_sha256 == expected.weights_sha256


@pytest.mark.parametrize("name", [name for name in EXACT if name != "allreduce"])
def test_an_exact_strategy_on_threads_is_serial(train, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    """Uneven slices, empty ones in the last batch, and two epochs."""
    settings = {"batch_size": 16, "epochs": 2, "dtype": "float64"}
    expected = weights_of(tmp_path, train(**settings))
    found = weights_of(tmp_path, train(**settings, engine="threads", workers=3, sync=name))
    assert distance(found, expected) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_says_what_it_is_and_explains_its_options(name: str) -> None:
    strategy = sync.make(name)
    assert isinstance(strategy.exact, bool)
    assert strategy.requires <= FEATURES
    assert dataclasses.is_dataclass(strategy)
    assert inspect.getdoc(type(strategy))
    assert not (strategy.exact and strategy.apart), "weights that differ are not those of one worker"
    assert (strategy.num_servers() > 0) == ("servers" in strategy.requires)


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="no_such"):
        sync.make(f"{name}:no_such=1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("local-sgd:period=0", "period of local-sgd must be at least 1, got 0"),
        ("overlap:bucket=0", "bucket of overlap must be at least 1, got 0"),
        ("parameter-server:servers=0", "servers must be at least 1, got 0"),
        ("async-server:servers=-1", "servers must be at least 1, got -1"),
        ("compressed:codec=zip", "there is no codec 'zip'"),
        ("compressed:codec=fp16,ratio=0.5", "codec 'fp16' has no options, but 'ratio' was given"),
        ("compressed:codec=topk,ratio=2", "ratio of codec 'topk' must be above 0 and at most 1, got 2"),
    ],
)
def test_a_bad_option_gets_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        sync.make(text)
    assert "\n" not in str(caught.value)


def test_an_engine_without_what_a_strategy_needs_is_named() -> None:
    class Needy:
        requires = frozenset({"split", "any-source"})

    with pytest.raises(UserError, match="needs any-source, split, which engine 'hybrid' does not have"):
        check_features(Needy(), frozenset({"p2p"}), "hybrid")  # type: ignore[arg-type]
    check_features(Needy(), frozenset({"p2p", "split", "any-source"}), "mpi")  # type: ignore[arg-type]


def test_a_strategy_that_starts_nowhere_is_found_out(ranks) -> None:  # type: ignore[no-untyped-def]
    """The test of the start could fail: replicas of different seeds do differ before it."""

    def work(comm: Comm) -> float:
        return float(make_replica(seed=comm.rank).params.sum())

    assert len(set(ranks(work, 3))) == 3
