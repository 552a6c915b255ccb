"""BatchNorm over the global batch: n workers give the weights and the running statistics of one, to round-off.

Batches of 10 and 4 rows of 26 samples: slices are uneven, and some are empty; the last batch of an epoch is short.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from small_runs import Trained, near, trained
from torch import Tensor, nn

from manyhands import Dataset, Task, launch, registry, sync
from manyhands.data import load
from manyhands.errors import UserError
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.sync import Sync

pytestmark = pytest.mark.timeout(300)

IMAGES = "synthetic:samples=26,shape=2x6x6,classes=3,test=5,seed=5"
FLAT = "synthetic:samples=26,features=12,classes=3,test=5,seed=5"
TINY = Path(__file__).parent / "tiny.py"
STRATEGIES = ("allreduce", "reduce-broadcast", "parameter-server", "sharded", "gather-server", "overlap:bucket=7")


class Nested(nn.Module):
    """BatchNorm in a module of its own, in two branches, over (rows, channels, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv1d(2, 4, 3, bias=False), nn.BatchNorm1d(4), nn.ReLU())
        self.right = nn.Sequential(nn.Conv1d(2, 4, 3, bias=False), nn.SyncBatchNorm(4, momentum=None))
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branches."""
        rows = x.view(-1, 2, 6)
        return self.last((self.left(rows) + self.right(rows)).flatten(1))


def _conv(*norms: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 5, 3, bias=False), *norms, nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "convolution": (lambda: _conv(nn.BatchNorm2d(5)), IMAGES),
    "two in a row": (lambda: _conv(nn.BatchNorm2d(5, momentum=0.3), nn.BatchNorm2d(5)), IMAGES),
    "nothing learned or kept": (lambda: _conv(nn.BatchNorm2d(5, affine=False, track_running_stats=False)), IMAGES),
    "three dimensions": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 3, 2, 2)), nn.Conv3d(1, 4, 2, bias=False), nn.BatchNorm3d(4), nn.Flatten(),
            nn.Linear(8, 3),
        ), FLAT,
    ),
    "stack": (
        lambda: nn.Sequential(
            nn.BatchNorm1d(12), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        ), FLAT,
    ),
    "branches": (Nested, FLAT),
}  # fmt: skip


@cache
def data_of(network: str) -> Dataset:
    """Return the data of a network."""
    return load(NETWORKS[network][1])


def task_of(network: str) -> Task:
    """Return the task of a network."""
    return Task(model=lambda data: NETWORKS[network][0](), data=NETWORKS[network][1], lr=0.05)


Run = Callable[..., tuple[Trained, dict[str, Any]]]


@pytest.fixture
def run(ranks: Any, tmp_path: Path) -> Run:
    """Train a network on threads; return weights and statistics, and the record."""

    def train(network: str, workers: int, strategy: str = "allreduce", **settings: Any) -> Any:
        return trained(ranks, tmp_path, task_of(network), data_of(network), workers, strategy, **settings)

    return train


@pytest.mark.parametrize("batch", [10, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_n_workers_give_the_answer_of_one(network: str, batch: int, run: Run) -> None:
    expected, alone = run(network, 1, batch_size=batch)
    for workers in (2, 3, 5):
        actual, record = run(network, workers, batch_size=batch)
        assert near(actual, expected), workers
        assert record["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-12)


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_exact_strategy_gives_the_answer_of_one(strategy: str, workers: int, run: Run) -> None:
    for network in ("two in a row", "branches"):
        expected, _ = run(network, 1, batch_size=4)
        assert near(run(network, workers, strategy, batch_size=4)[0], expected)


def test_micro_batches_are_whole_batches(run: Run) -> None:
    expected, _ = run("stack", 1, batch_size=10)
    for workers in (1, 3):
        assert near(run("stack", workers, batch_size=10, micro_batch=2)[0], expected)


def test_calls_inside_a_pass_are_communication_and_not_compute(run: Run) -> None:
    for strategy in ("allreduce", "parameter-server"):
        plain, normed = (
            run("convolution", 3, strategy, batch_size=10, batchnorm=batchnorm)[1] for batchnorm in ("local", "global")
        )
        assert normed["messages"] == plain["messages"] + 2 * 3 * 9, "a gather and a sum on each worker in each step"
        assert normed["bytes_sent"] > plain["bytes_sent"]
        for rank in normed["ranks"][:3]:
            assert rank["serial_s"] <= rank["compute_s"]


PROCESSES = {"mpi": (3, 1), "hybrid": (2, 2), "torch": (3, 1), "ray": (2, 1)}
"""Processes and threads in each."""


@pytest.mark.parametrize("engine", PROCESSES)
def test_engines_that_start_processes_meet_too(engine: str, train: Any, tiny: Any, tmp_path: Path) -> None:
    workers, threads = PROCESSES[engine]
    same = {"batch_size": 10, "steps": 11, "dtype": "float64", "sync": "overlap:bucket=7" if engine == "mpi" else None}
    records = [train(tiny("batchnorm"), **same, **group) for group in (
        {"engine": "serial"}, {"engine": engine, "workers": workers, "threads": threads},
    )]  # fmt: skip
    assert [record.warnings for record in records] == [[], []]
    expected, actual = (load_file(tmp_path / record.id / "model.safetensors") for record in records)
    assert near(actual, expected)


def test_no_engine_is_left_out() -> None:
    """Those that cannot meet are refused, below."""
    assert set(launch.names()) == {"serial", "threads", "sim", *PROCESSES}


@pytest.mark.parametrize("strategy", registry.names(sync, Sync))
def test_no_strategy_runs_other_batchnorm_than_promised(strategy: str) -> None:
    """Exact strategies normalise over the global batch; workers who step alone, over their own slices."""
    config = resolve(f"{TINY}:batchnorm", {"engine": "threads", "workers": 2, "sync": strategy})
    assert preflight(config).replica.meets is sync.make(strategy).exact
    assert not preflight(config.model_copy(update={"batchnorm": "local"})).replica.meets


@pytest.mark.parametrize("strategy", ["allreduce", "parameter-server"])
def test_virtual_workers_are_refused(strategy: str, train: Any, tiny: Any) -> None:
    with pytest.raises(UserError, match=r"virtual workers take turns .* --batchnorm local"):
        train(tiny("batchnorm"), engine="sim", workers=2, steps=2, sync=strategy)
    assert train(tiny("batchnorm"), engine="sim", workers=2, steps=2, sync=strategy, batchnorm="local").warnings


def test_exact_is_refused() -> None:
    for engine in ({"engine": "serial"}, {"engine": "threads", "workers": 2}):
        with pytest.raises(UserError, match=r"--exact cannot hold with BatchNorm .* --batchnorm local"):
            preflight(resolve(f"{TINY}:batchnorm", {**engine, "exact": True}))


def test_a_global_batch_of_one_row_is_refused_and_a_slice_of_one_row_is_not(tmp_path: Path) -> None:
    task = task_of("stack")
    config = resolve("own", {"engine": "threads", "workers": 5, "steps": 20, "batch_size": 6}, task)
    assert not preflight(config, task).warnings
    with pytest.raises(UserError, match=r"cannot normalise a single row, which is all that some global batch has"):
        preflight(config.model_copy(update={"batch_size": 5}), task)


def test_micro_batches_that_are_not_cut_are_said() -> None:
    (note,) = preflight(resolve(f"{TINY}:batchnorm", {"micro_batch": 4})).warnings
    assert "--batchnorm local cuts them" in note
