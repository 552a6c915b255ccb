"""Groups, schedulers, clipping and whole tensors: with every strategy as in plain torch on one worker."""

from functools import cache
from pathlib import Path

import pytest
import torch
from driving import distance, weights_of
from optimizing import STEPS, TASKS, plain_weights

import manyhands
from manyhands.request import resolve
from manyhands.tasks.setup import load_data

FILE = Path(__file__).parent / "optimizing.py"
ROUND_OFF = 1e-12
EXACT = (
    "allreduce",
    "reduce-broadcast",
    "gather-server",
    "overlap:bucket=7",
    "sharded",
    "parameter-server",
    "parameter-server:servers=2",
    "parameter-server:servers=3",
)
CUTTING = ("sharded", "parameter-server:servers=2")
FEW = ("adamw", "adafactor_groups", "together", "clip_groups", "one_cycle", "unfreeze", "plateau")
ROUNDING = ("muon",)
"""Tasks that compute in bfloat16 whatever the type of the weights, so that round-off is as large as that."""
NAMES = pytest.mark.parametrize("name", TASKS)


def _spec(name: str) -> str:
    return f"{FILE}:{name}"


@pytest.fixture(scope="module")
def serial_bits(tmp_path_factory):  # type: ignore[no-untyped-def]
    """Return a function that tells the hash of the weights and the test loss of one worker with --exact."""

    @cache
    def bits(name: str) -> tuple[str, float | None]:
        record = manyhands.train(_spec(name), out=tmp_path_factory.mktemp("serial"), steps=STEPS, exact=True)
        return record.weights_sha256, record.test_loss

    return bits


@NAMES
def test_one_worker_does_what_plain_torch_does(train, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    options = {"steps": STEPS, "dtype": "float64", "fuse": name not in ROUNDING}
    found = weights_of(tmp_path, train(_spec(name), **options))
    expected = plain_weights(name, resolve(_spec(name), options))
    assert distance(found, expected) <= ROUND_OFF


def _cases() -> list[tuple[str, str]]:
    """Return strategies with tasks: all of them where slices are cut, a few where the update is that of one worker."""
    return [(sync, name) for sync in EXACT for name in (TASKS if sync in CUTTING else FEW)]


@pytest.mark.parametrize(("sync", "name"), _cases())
def test_exact_strategies_give_the_serial_bits(train, serial_bits, name: str, sync: str) -> None:  # type: ignore[no-untyped-def]
    record = train(_spec(name), engine="threads", workers=3, sync=sync, steps=STEPS, exact=True)
    assert (record.weights_sha256, record.test_loss) == serial_bits(name)


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ROUNDING])
@pytest.mark.parametrize("sync", ["allreduce", "sharded"])
def test_strategies_give_the_serial_answer(train, tmp_path: Path, name: str, sync: str) -> None:  # type: ignore[no-untyped-def]
    options = {"steps": STEPS, "dtype": "float64"}
    expected = plain_weights(name, resolve(_spec(name), options))
    shared = weights_of(tmp_path, train(_spec(name), engine="threads", workers=2, sync=sync, **options))
    assert distance(shared, expected) <= ROUND_OFF


@pytest.mark.parametrize("name", ["clip", "clip_groups", "one_cycle", "unfreeze", "trust", "together"])
@pytest.mark.parametrize("sync", ["local-sgd", "gossip", "async-server", "async-server:servers=3"])
def test_a_single_worker_does_what_plain_torch_does(train, tmp_path: Path, name: str, sync: str) -> None:  # type: ignore[no-untyped-def]
    options = {"steps": STEPS, "dtype": "float64"}
    expected = plain_weights(name, resolve(_spec(name), options))
    found = weights_of(tmp_path, train(_spec(name), engine="threads", workers=1, sync=sync, **options))
    assert distance(found, expected) <= ROUND_OFF


@pytest.mark.parametrize("name", ["mixed", "adafactor", "trust", "together", "unfreeze", "plateau", "one_cycle_adam"])
@pytest.mark.parametrize("sync", ["local-sgd:period=4", "async-server:servers=2", "compressed:codec=powersgd"])
def test_other_strategies_train_with_all_of_it(train, name: str, sync: str) -> None:  # type: ignore[no-untyped-def]
    record = train(_spec(name), engine="threads", workers=3, sync=sync, steps=STEPS)
    assert record.steps == STEPS


@NAMES
@pytest.mark.parametrize("until", [7, 10])
def test_a_resumed_run_has_the_bits_of_one_that_went_on(train, serial_bits, name: str, until: int) -> None:  # type: ignore[no-untyped-def]
    """It goes on with another number of workers; after step 10 comes an evaluation, which some rates depend on."""
    train(_spec(name), engine="threads", workers=2, sync="sharded", exact=True, steps=until, checkpoint_every=until)
    record = train(_spec(name), resume=True, workers=3, steps=STEPS)
    assert (record.weights_sha256, record.test_loss) == serial_bits(name)


@pytest.mark.parametrize("name", ["mixed", "adafactor", "trust", "together", "one_cycle", "unfreeze", "plateau"])
@pytest.mark.parametrize("sync", ["parameter-server:servers=2", "allreduce"])
def test_servers_resume_too(train, serial_bits, name: str, sync: str) -> None:  # type: ignore[no-untyped-def]
    train(_spec(name), engine="threads", workers=2, sync=sync, exact=True, steps=7, checkpoint_every=7)
    record = train(_spec(name), resume=True, workers=1, steps=STEPS)
    assert (record.weights_sha256, record.test_loss) == serial_bits(name)


@pytest.mark.parametrize("name", ["mixed", "trust", "adafactor", "one_cycle_adam", "clip_groups", "plateau"])
def test_workers_that_step_alone_resume_too(train, name: str) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 3, "sync": "local-sgd:period=4"}
    whole = train(_spec(name), steps=STEPS, **options)
    train(_spec(name), steps=10, checkpoint_every=5, **options)
    assert train(_spec(name), resume=True, steps=STEPS).weights_sha256 == whole.weights_sha256


def _held(name: str) -> int:
    """Return the bytes that plain torch's optimiser holds of all weights."""
    config = resolve(_spec(name), {})
    task = TASKS[name]
    module = task.make_model(load_data(task, config))
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    groups = task.param_groups(module) if task.param_groups else None
    optimizer = task.make_optimizer(groups or list(module.parameters()), config)
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in states if isinstance(value, torch.Tensor) and value.dim())


@pytest.mark.parametrize("name", ["groups", "adamw", "mixed", "adafactor", "trust", "apart", "clip_groups"])
def test_every_rank_holds_the_state_of_its_slice(train, name: str) -> None:  # type: ignore[no-untyped-def]
    told = [r.notes["optimizer_bytes"] for r in train(_spec(name), workers=2, engine="threads", sync="sharded").ranks]
    assert sum(told) == _held(name), "each quantity is held once"
    assert max(told) < sum(told)
