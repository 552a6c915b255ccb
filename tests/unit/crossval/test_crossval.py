"""A fold's score is what `train` gives on that fold, whoever trains it and however many are trained at once."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from torch import nn

import manyhands
from manyhands import tasks
from manyhands.comm import Comm
from manyhands.config import RunConfig
from manyhands.crossval import run as crossval_run
from manyhands.crossval.record import CrossvalRecord, half_interval, improvement
from manyhands.crossval.run import cross_validate, tabulate
from manyhands.crossval.units import FoldSettings, assign, units_of
from manyhands.data import Dataset, Split
from manyhands.errors import Diverged, RankFailed, UserError
from manyhands.record.run import Pulse
from manyhands.tasks.setup import load_data
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.watch import Watch

TINY = Path(__file__).parents[2] / "conformance" / "tiny.py"
NETWORKS = ["mlp", "sigmoid", "adam", "dropout", "conv", "batchnorm"]

Crossval = Callable[..., CrossvalRecord]


@pytest.fixture
def crossval(tmp_path: Path) -> Crossval:
    """Cross-validate a tiny task on three folds, with one thread; no baseline unless asked for."""

    def run(task: str | manyhands.Task = "mlp", **options: Any) -> CrossvalRecord:
        named = f"{TINY}:{task}" if isinstance(task, str) else task
        settings = {"folds": 3, "epochs": 2, "baseline": False, "blas_threads": 1, "out": tmp_path, **options}
        return cross_validate(named, **settings)

    return run


def bits(record: CrossvalRecord) -> list[tuple[float, float, str]]:
    return [(f.accuracy, f.loss, f.weights_sha256) for f in record.folds]


def losses(record: CrossvalRecord) -> list[float]:
    return [f.loss for f in record.folds]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_fold_is_what_train_gives_on_it(crossval: Crossval, tmp_path: Path, network: str) -> None:
    record = crossval(network, stacked=False)
    task = tasks.load(f"{TINY}:{network}")
    data: Dataset = load_data(task, record.config)
    ask = FoldSettings(folds=3)
    for unit, fold in zip(units_of(assign(data.train, ask, 0), ask), record.folds, strict=True):
        alone = manyhands.train(replace(task, data=partial(unit.of, data)), epochs=2, blas_threads=1, out=tmp_path)
        assert (alone.test_accuracy, alone.test_loss, alone.weights_sha256) == bits(record)[fold.fold]
        assert (fold.steps, fold.train_samples * 2, fold.samples) == (alone.steps, alone.samples, len(unit.test))


@pytest.mark.parametrize("network", NETWORKS)
def test_threads_give_the_bits_of_one_worker(crossval: Crossval, network: str) -> None:
    alone = crossval(network, stacked=False, epochs=1)
    for workers in (2, 3):
        assert bits(crossval(network, epochs=1, engine="threads", workers=workers, stacked=False)) == bits(alone)


@pytest.mark.parametrize(
    ("network", "batch_size"), [("mlp", 10), ("sigmoid", 77), ("adam", "full"), ("mlp", "full"), ("adam", 77)]
)
def test_the_bits_do_not_depend_on_who_is_stacked_with_whom(
    crossval: Crossval, network: str, batch_size: int | str
) -> None:
    """Five folds of 97 samples train on 77 or 78: the padding must not depend on the others of a stack either."""
    alone = crossval(network, folds=5, batch_size=batch_size)
    assert all(f.stacked for f in alone.folds)
    for workers in (2, 3, 5):
        many = crossval(network, folds=5, batch_size=batch_size, engine="threads", workers=workers)
        assert all(f.stacked for f in many.folds)
        assert bits(many) == bits(alone)


@pytest.mark.parametrize(
    ("network", "options"),
    [
        *((network, {"warmup": 0.5, "lr_decay": "cosine"}) for network in NETWORKS),
        *((network, {"batch_size": "full", "steps": 1}) for network in ("sigmoid", "dropout")),
        *((network, {"steps": 5}) for network in ("adam", "dropout")),
    ],
)
def test_stacked_equals_in_turn_to_round_off(crossval: Crossval, network: str, options: dict[str, Any]) -> None:
    options = {"dtype": "float64", "folds": 5, **options}
    stacked, in_turn = crossval(network, stacked=True, **options), crossval(network, stacked=False, **options)
    assert not any(f.stacked for f in in_turn.folds)
    if network not in ("conv", "batchnorm"):
        assert all(f.stacked for f in stacked.folds)
    assert losses(stacked) == pytest.approx(losses(in_turn), rel=1e-9)
    assert [f.accuracy for f in stacked.folds] == [f.accuracy for f in in_turn.folds]
    assert [f.steps for f in stacked.folds] == [f.steps for f in in_turn.folds]


@pytest.mark.parametrize("batch_size", [13, 39, 77, 78])
def test_folds_of_uneven_sizes_stack(crossval: Crossval, batch_size: int) -> None:
    """97 samples in five folds leave 77 or 78 to train on: one batch or two, the last of 1 row or none."""
    options = {"dtype": "float64", "folds": 5, "batch_size": batch_size, "micro_batch": 4, "replicate": 2}
    stacked, in_turn = crossval("adam", stacked=True, **options), crossval("adam", stacked=False, **options)
    assert len({f.train_samples for f in in_turn.folds}) == 2
    assert losses(stacked) == pytest.approx(losses(in_turn), rel=1e-9)
    assert [f.steps for f in stacked.folds] == [f.steps for f in in_turn.folds]


def test_what_is_stacked_by_default(crossval: Crossval) -> None:
    two: dict[str, Any] = {"engine": "threads", "workers": 2}
    assert all(f.stacked for f in crossval().folds)
    assert all(f.stacked for f in crossval(**two).folds)
    assert all(f.stacked for f in crossval("dropout").folds)
    assert not any(f.stacked for f in crossval("dropout", **two).folds), "these bits depend on the stack"
    assert not any(f.stacked for f in crossval(blas_threads=2, **two).folds), "and these on the threads"
    assert not any(f.stacked for f in crossval(exact=True).folds)


@pytest.mark.parametrize("workers", [4, 8])
def test_more_workers_than_folds_share_each_fold(crossval: Crossval, workers: int) -> None:
    alone = crossval(dtype="float64")
    many = crossval(dtype="float64", engine="threads", workers=workers)
    assert not any(f.stacked for f in many.folds)
    assert losses(many) == pytest.approx(losses(alone), rel=1e-9)
    assert [f.accuracy for f in many.folds] == [f.accuracy for f in alone.folds]


def test_more_workers_than_folds_give_the_same_bits_with_exact(crossval: Crossval) -> None:
    alone = crossval("dropout", exact=True, epochs=1)
    assert bits(crossval("dropout", exact=True, epochs=1, engine="threads", workers=7)) == bits(alone)


def test_a_worker_trains_its_folds_on_its_own_device(crossval: Crossval, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[tuple[str, int | None]] = []

    def noted(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        places.append((job.run.path.name, job.place))
        return train_rank(comm, job, watch)

    monkeypatch.setattr("manyhands.crossval.worker.train_rank", noted)
    crossval(engine="threads", workers=3, stacked=False, steps=1)
    assert sorted(places) == [(f"node-0-fold-0{i}", i) for i in range(3)]


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the machine seem to have six cores."""
    monkeypatch.setattr("manyhands.machine.facts.cores", lambda: 6)
    return 6


@pytest.mark.parametrize(("workers", "stacked", "expected"), [(1, False, 6), (3, False, 2), (1, None, 1)])
def test_each_worker_has_its_share_of_the_cores(
    crossval: Crossval, many_cores: int, monkeypatch: pytest.MonkeyPatch, workers: int, stacked: bool, expected: int
) -> None:
    config, ask = shared_cores(monkeypatch, crossval, workers=workers, stacked=stacked, blas_threads=0)
    assert config.blas_threads == expected
    assert ask.threads == (many_cores if stacked is None else 1)


def test_the_users_own_threads_are_kept(crossval: Crossval, many_cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config, ask = shared_cores(monkeypatch, crossval, blas_threads=3)
    assert (config.blas_threads, ask.threads) == (3, 1)


def test_the_baseline_has_the_threads_of_each_worker(crossval: Crossval, many_cores: int, tmp_path: Path) -> None:
    many = crossval("conv", engine="threads", workers=3, steps=2, blas_threads=0, baseline=True)
    assert many.bit_equal
    alone = [json.loads(p.read_text()) for p in tmp_path.glob("*/baseline/*/record.json")]
    assert [record["config"]["blas_threads"] for record in alone] == [many.config.blas_threads] * 3 == [2] * 3


def test_stacks_side_by_side_give_the_same_bits(crossval: Crossval, many_cores: int) -> None:
    assert bits(crossval(folds=5, blas_threads=0)) == bits(crossval(folds=5))


def test_a_tables_cells_share_the_cores_of_their_own_workers(
    tmp_path: Path, many_cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr(crossval_run, "_run", lambda config, ask, *rest: ran.append((config, ask)) or stop())
    for nodes, threads in ((1, 6), (2, 3)):
        with pytest.raises(KeyboardInterrupt):
            tabulate(f"{TINY}:mlp", nodes=(nodes,), folds=(2,), engine="threads", workers=2, out=tmp_path)
        assert (ran[-1][0].blas_threads, ran[-1][1].threads) == (1, threads)


def stop() -> None:
    raise KeyboardInterrupt


def shared_cores(monkeypatch: pytest.MonkeyPatch, crossval: Crossval, **options: Any) -> tuple[RunConfig, FoldSettings]:
    """Return what would be run, without running it."""
    found: list[tuple[RunConfig, FoldSettings]] = []
    monkeypatch.setattr(crossval_run, "_run", lambda config, ask, *rest: found.append((config, ask)) or stop())
    with pytest.raises(KeyboardInterrupt):
        crossval(**{"engine": "threads", **options})
    return found[0]


def test_the_baseline_says_whether_the_bits_are_the_same(crossval: Crossval) -> None:
    record = crossval(engine="threads", workers=2, baseline=True)
    assert record.bit_equal
    assert record.max_loss_difference == 0
    assert record.baseline_s is not None
    assert record.speed_up == record.baseline_s / record.total_s
    assert record.improvement_pct == pytest.approx(100 * (1 - 1 / record.speed_up))
    different = record.folds[0].model_copy(update={"loss": record.folds[0].loss * (1 + 1e-12)})
    other = record.model_copy(update={"folds": [different, *record.folds[1:]]})
    assert not record.against(other).bit_equal


def test_one_worker_needs_no_baseline(crossval: Crossval) -> None:
    assert crossval(baseline=None).baseline_s is None


def test_the_record_is_kept_and_sums_up_the_folds(crossval: Crossval, tmp_path: Path) -> None:
    record = crossval()
    kept = CrossvalRecord.model_validate_json((tmp_path / record.id / "crossval.json").read_text())
    assert kept == record
    accuracies = [f.accuracy for f in record.folds]
    assert record.accuracy == pytest.approx(sum(accuracies) / 3)
    assert sum(f.samples for f in record.folds) == 97
    assert record.config.blas_threads == 1
    assert record.wall_s >= record.total_s
    low, high = stats.t.interval(0.95, 2, loc=record.accuracy, scale=stats.sem(accuracies))
    assert record.interval == pytest.approx((high - low) / 2 * np.sqrt(1 + 3 / 2)), "each two folds share samples"


@pytest.mark.parametrize("num_folds", [3, 5, 10])
def test_the_interval_of_an_accuracy_holds_in_95_percent_of_cases(num_folds: int) -> None:
    """Cross-validate the nearest neighbour on made-up data, again and again: folds share their training samples."""
    random, samples, trials = np.random.default_rng(num_folds), 60, 300
    y, fold = np.tile([0, 1], samples // 2), np.arange(samples) // 2 % num_folds
    x = random.standard_normal((trials, samples, 4))
    x[:, :, 0] += 0.5 * (2 * y - 1)
    distances = np.square(x[:, :, None] - x[:, None]).sum(-1)
    distances[:, fold[:, None] == fold] = np.inf  # a fold's own samples are not trained on
    right = y[distances.argmin(-1)] == y
    accuracies = np.stack([right[:, fold == number].mean(1) for number in range(num_folds)], 1)
    widths = np.array([half_interval(row, num_folds) for row in accuracies.tolist()], dtype=float)
    assert np.mean(np.abs(accuracies.mean(1) - accuracies.mean()) <= widths) >= 0.93


def test_intervals_and_improvements() -> None:
    assert half_interval([0.5], 1) is None
    assert half_interval([0.25, 0.25, 0.25], 3) == 0
    assert improvement(9511.66, 2909.78) == pytest.approx(69.4, abs=0.05)
    assert improvement(10, 10) == 0
    assert improvement(10, 20) == -100


@pytest.mark.parametrize("network", ["mlp", "batchnorm"])
def test_split_data_averages_the_weights_of_all_models(crossval: Crossval, tmp_path: Path, network: str) -> None:
    record = crossval(network, split_data=True, nodes=2, batch_size=32)
    assert [(f.node, f.fold) for f in record.folds] == [(n, f) for n in range(2) for f in range(3)]
    folder = tmp_path / record.id
    models = [load_file(folder / f"node-{n}-fold-0{f}" / "model.safetensors") for n in range(2) for f in range(3)]
    mean = load_file(folder / "model.safetensors")
    for name, weight in mean.items():
        expected = torch.stack([m[name].double() for m in models]).mean(0)
        if weight.is_floating_point():
            assert torch.allclose(weight.double(), expected, atol=1e-7)
        else:
            assert weight.equal(expected.round().to(weight.dtype))
            assert weight > 0
    assert record.hold_out is not None
    assert record.hold_out.loss > 0
    assert record.longest_node_s <= sum(f.seconds for f in record.folds)


@pytest.mark.parametrize(("workers", "network"), [(2, "batchnorm"), (4, "mlp"), (7, "batchnorm")])
def test_split_data_gives_the_same_bits_on_any_number_of_workers(
    crossval: Crossval, workers: int, network: str
) -> None:
    """Folds of 32 and 33 samples make other numbers of steps, which BatchNorm counts: the mean must be of all."""
    options: dict[str, Any] = {"task": network, "split_data": True, "nodes": 2, "exact": True, "batch_size": 32}
    options["batchnorm"] = "local"
    alone, many = crossval(**options), crossval(engine="threads", workers=workers, **options)
    assert bits(many) == bits(alone)
    assert many.hold_out == alone.hold_out
    assert len({f.steps for f in alone.folds}) == 2


def test_the_hold_out_is_never_trained_on_nor_folded(crossval: Crossval) -> None:
    task = tasks.load(f"{TINY}:mlp")

    def other_test_split() -> Dataset:
        data = load_data(task, crossval().config)
        flipped = replace(data.test, x=data.test.x * 3 + 1)
        return replace(data, test=flipped)

    options: dict[str, Any] = {"split_data": True, "nodes": 2}
    one, other = crossval(task, **options), crossval(replace(task, data=other_test_split), **options)
    assert bits(one) == bits(other)
    assert one.hold_out is not None
    assert other.hold_out is not None
    assert one.hold_out.weights_sha256 == other.hold_out.weights_sha256
    assert one.hold_out.loss != other.hold_out.loss


def test_one_node_is_the_whole_data(crossval: Crossval) -> None:
    assert bits(crossval(split_data=True, nodes=1)) == bits(crossval())


def test_the_table_holds_every_cell_to_one_node(tmp_path: Path) -> None:
    observed: list[str] = []

    def observe(label: str, models: int) -> Callable[[Pulse], None]:
        observed.append(label)
        return lambda pulse: None

    table = tabulate(
        f"{TINY}:mlp", nodes=(1, 4), folds=(2, 3), engine="threads", workers=2, out=tmp_path, observe=observe
    )
    assert [(c.nodes, c.num_folds, c.workers) for c in table.cells] == [(1, 2, 1), (1, 3, 1), (4, 2, 2), (4, 3, 2)]
    assert table.cells[0].improvement_pct is None
    first, last = table.cells[1], table.cells[3]
    assert last.baseline_s == first.total_s
    assert last.improvement_pct == pytest.approx(improvement(first.total_s, last.total_s))
    assert last.bit_equal is None, "other folds cannot be compared"
    assert all(cell.hold_out for cell in table.cells)
    assert (tmp_path / table.id / "table.json").is_file()
    assert observed[-1] == "4 nodes of 3 folds, 2 workers"


@pytest.mark.parametrize("stacked", [True, False])
def test_progress_goes_up_to_the_end(crossval: Crossval, stacked: bool) -> None:
    pulses: list[Pulse] = []
    crossval(stacked=stacked, observe=lambda label, models: pulses.append)
    steps = [p.step for p in pulses]
    assert steps == sorted(steps)
    assert steps[-1] == pulses[-1].steps == 3 * 7 * 2
    assert all(math.isfinite(p.eta_s) for p in pulses)


@pytest.mark.parametrize("options", [{"stacked": True}, {"stacked": False}, {"engine": "threads", "workers": 2}])
def test_ctrl_c_ends_all_folds(crossval: Crossval, tmp_path: Path, options: dict[str, Any]) -> None:
    import os
    import signal

    def interrupt(pulse: Pulse) -> None:
        if pulse.step < pulse.steps / 2:
            os.kill(os.getpid(), signal.SIGINT)

    once = [interrupt]

    def observe(pulse: Pulse) -> None:
        if once:
            once.pop()(pulse)

    with pytest.raises(KeyboardInterrupt):
        crossval(epochs=200, observe=lambda label, models: observe, **options)
    assert not list(tmp_path.rglob("crossval.json"))


@pytest.mark.parametrize("stacked", [True, False])
def test_a_fold_that_diverges_says_so(crossval: Crossval, stacked: bool) -> None:
    with pytest.raises(Diverged, match="try a smaller --lr"):
        crossval(stacked=stacked, lr=1e30, epochs=20)


def test_a_worker_that_fails_ends_those_that_train_alone(crossval: Crossval) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and bool((x == 99).any()):
                raise RuntimeError("this row is poison")
            out: torch.Tensor = self.layer(x)
            return out

    x, y = torch.rand(60, 3), torch.arange(60) % 2
    x[50] = 99
    split = Split(x, y)
    task = manyhands.Task(model=lambda data: Net(), data=lambda: Dataset("mine", split, split, classes=2))
    with pytest.raises(RankFailed, match="this row is poison"):
        crossval(task, folds=2, engine="threads", workers=2, epochs=1_000_000)


RANDOM = """
import numpy as np
from torch import nn
from manyhands import Task

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 3)
    def forward(self, x):
        return self.layer(x * np.random.random())

task = Task(model=lambda d: Net(), data="synthetic:samples=97,features=12,classes=3,test=23,seed=5", batch_size=10)
norm = Task(
    model=lambda d: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    data="synthetic:samples=97,features=12,classes=3,test=23,seed=5",
)
"""


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("mlp", {"folds": 1}, "folds must be at least 2, got 1"),
        ("mlp", {"folds": 60}, r"class \d has \d+ training samples, too few for 60 folds"),
        ("mlp", {"nodes": 2}, "nodes 2 needs --split-data"),
        ("mlp", {"split_data": True, "nodes": 0}, "nodes must be at least 1, got 0"),
        ("mlp", {"engine": "hybrid", "workers": 2, "threads": 2}, "engine hybrid cannot form the groups"),
        ("mlp", {"checkpoint_every": 5}, "crossval keeps no checkpoints"),
        ("mlp", {"eval_every": 2}, "a fold is tested once, after its last epoch; leave --eval-every out"),
        ("mlp", {"sync": "local-sgd"}, "sync 'local-sgd' would do nothing, since one worker trains each of the 3"),
        ("mlp", {"folds": "three"}, "folds must be a valid integer, got 'three'"),
        ("mlp", {"exact": True, "stacked": True}, "give --exact or --stacked, not both"),
        ("mlp", {"sync": "nonsense"}, "there is no sync 'nonsense'"),
        ("mlp", {"engine": "serial", "workers": 2}, "engine serial has one worker, got 2"),
        ("random", {"engine": "threads", "workers": 2}, "process-wide generator"),
        ("norm", {"batch_size": 19, "folds": 5}, "cannot normalise a single row"),
    ],
)
def test_a_bad_request_is_one_sentence(
    crossval: Crossval, tmp_path: Path, task: str, options: dict[str, Any], says: str
) -> None:
    own = tmp_path / "own.py"
    own.write_text(RANDOM)
    chosen = {"random": f"{own}:task", "norm": f"{own}:norm"}.get(task)
    with pytest.raises(UserError, match=says):
        crossval(tasks.load(chosen) if chosen else task, **options)
    assert not list(tmp_path.glob("*crossval"))
