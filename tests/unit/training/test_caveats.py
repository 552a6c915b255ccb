"""What makes slices of a batch differ from the batch is found by trial, warned of, and no false alarm is given."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from promised import FLAT, LOSSES, MODELS, loss_task, model_task, rare, weight_of, with_decay
from safetensors.torch import load_file
from torch import nn

import manyhands
from manyhands import Task
from manyhands.config import RunConfig, make_config
from manyhands.data import load
from manyhands.errors import UserError
from manyhands.replica import Batch, Replica
from manyhands.request import resolve
from manyhands.run import execute, preflight
from manyhands.tasks.setup import load_data, make_replica
from manyhands.training.caveats import causes_of, warnings_of
from manyhands.verification.verify import verify

HERE = f"{Path(__file__).parent / 'promised.py'}"
TINY = f"{Path(__file__).parents[2] / 'conformance/tiny.py'}"
WARNS = "several workers will not give the answer of one: "


def _replica(task: Task, **options: object) -> tuple[Replica, RunConfig]:
    config = make_config({"task": "own", "data": FLAT, "batchnorm": task.batchnorm, **options})
    return make_replica(task, config, load_data(task, config), torch.device("cpu")), config


def _kinds(task: Task) -> list[str]:
    replica, config = _replica(task)
    return [cause.kind for cause in causes_of(task, replica, load_data(task, config))]


@pytest.mark.parametrize("name", MODELS)
def test_what_parts_slices_from_batches_is_found_in_the_model(name: str) -> None:
    assert _kinds(model_task(name)) == MODELS[name][1]


@pytest.mark.parametrize("name", LOSSES)
def test_what_parts_slices_from_batches_is_found_in_the_loss(name: str) -> None:
    assert _kinds(loss_task(name)) == LOSSES[name][1]


def test_a_weight_of_a_rare_class_is_found() -> None:
    task = loss_task("class weights")
    assert _kinds(Task(model=task.model, data=lambda: rare(load(FLAT)), loss=task.loss)) == ["loss"]


def test_the_trial_changes_neither_weights_nor_statistics() -> None:
    task = model_task("noise and batchnorm")
    replica, config = _replica(task)
    before = replica.params.clone()
    causes_of(task, replica, load_data(task, config))
    assert torch.equal(before, replica.params)


@pytest.mark.parametrize(
    ("declared", "kinds"),
    [
        ({"loss": LOSSES["sum"][0], "reduction": "sum"}, []),
        ({"loss": LOSSES["mean"][0], "reduction": "sum"}, ["mean"]),
        ({"loss": LOSSES["pairs of rows"][0], "reduction": "sum"}, ["loss"]),
        ({"loss": LOSSES["class weights"][0], "loss_weight": weight_of}, []),
        ({"loss": LOSSES["class weights"][0], "loss_weight": lambda y: (y > 0).sum()}, ["weights"]),
        ({"loss": LOSSES["some labels ignored"][0], "loss_weight": lambda y: (y != 0).sum()}, []),
        ({"loss": with_decay}, []),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_a_loss_is_judged_by_what_the_task_says_of_it(declared: dict[str, Any], kinds: list[str]) -> None:
    assert _kinds(Task(model=lambda data: nn.Linear(12, 3), data=FLAT, **declared)) == kinds


def test_loss_weight_is_named_where_it_would_help() -> None:
    task = loss_task("class weights")
    replica, config = _replica(task, engine="threads", workers=2)
    (warning,) = warnings_of(config, task, replica, load_data(task, config))
    assert "Task(loss_weight=" in warning


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("batchnorm", []),
        ("syncbatchnorm", []),
        ("batchnorm without statistics", []),
        ("noise and batchnorm", ["random"]),
        ("two that mix", ["rows"]),
        ("batchnorm and the mean", ["rows"]),
    ],
)
def test_batchnorm_over_the_global_batch_is_no_cause_but_other_layers_are(name: str, kinds: list[str]) -> None:
    replica, config = _replica(model_task(name, "global"))
    causes = causes_of(model_task(name, "global"), replica, load_data(model_task(name), config))
    assert [cause.kind for cause in causes] == kinds
    assert not any("BatchNorm" in cause.layer for cause in causes)


def test_the_way_out_of_local_batchnorm_is_named() -> None:
    for batchnorm, says in (("local", ["--batchnorm global"]), ("global", [])):
        options = {"engine": "threads", "workers": 2, "batchnorm": batchnorm}
        warnings = preflight(resolve(f"{HERE}:norm", options)).warnings
        assert [text for sentence in warnings for text in ["--batchnorm global"] if text in sentence] == says


@pytest.mark.parametrize(
    ("name", "options", "warns"),
    [
        ("batchnorm", {"engine": "threads", "workers": 2}, True),
        ("batchnorm", {}, False),
        ("batchnorm", {"micro_batch": 4}, True),
        ("batchnorm", {"micro_batch": 12}, False),
        ("batchnorm", {"engine": "threads", "workers": 2, "exact": True, "batch_size": 32}, False),
        ("batchnorm", {"engine": "threads", "workers": 2, "sync": "local-sgd"}, False),
        ("functional dropout", {"engine": "threads", "workers": 2}, False),
        ("noise of numpy", {"engine": "threads", "workers": 2}, True),
        ("noise of numpy", {"micro_batch": 4}, False),
        ("noise of numpy", {"engine": "mpi", "workers": 2, "exact": True}, False),
        ("own generator", {"engine": "threads", "workers": 2}, True),
        ("own generator", {"engine": "threads", "workers": 2, "exact": True}, True),
        ("own generator", {}, False),
        ("dropout", {"engine": "threads", "workers": 3}, False),
    ],
)
def test_only_what_differs_is_warned_of(name: str, options: dict[str, object], warns: bool) -> None:
    task = model_task(name)
    replica, config = _replica(task, **{"batch_size": 12, **options})
    assert bool(warnings_of(config, task, replica, load_data(task, config))) is warns


def test_exact_is_not_recommended_where_it_does_not_help() -> None:
    for name, helps in (("norm", True), ("own_generator", False)):
        (warning,) = preflight(resolve(f"{HERE}:{name}", {"engine": "threads", "workers": 2})).warnings
        assert ("--exact" in warning) is helps


@pytest.mark.parametrize("name", ["functional dropout", "noise of numpy", "noise of Python"])
def test_draws_depend_on_the_place_in_the_run_alone(name: str) -> None:
    task = model_task(name)
    replica, config = _replica(task)
    x, y = load_data(task, config).train.batch(slice(0, 6), torch.float32)
    found = []
    for _ in range(2):
        replica.forward_backward(Batch(x, y, first=6, key=7), 1.0)
        found.append(replica.grads.clone())
    assert torch.equal(*found)


def test_a_loss_that_is_a_sum_is_refused_where_batches_are_cut() -> None:
    for options in ({"engine": "threads", "workers": 2}, {"micro_batch": 4}, {"exact": True}):
        with pytest.raises(UserError, match=r'is a sum over the rows, .* say reduction="sum"'):
            preflight(resolve(f"{HERE}:summed", options))
    assert preflight(resolve(f"{HERE}:summed", {})).warnings == []


def test_statistics_of_a_single_row_are_refused_in_pieces_of_a_batch_too() -> None:
    with pytest.raises(UserError, match="cannot normalise a single row"):
        preflight(resolve(f"{HERE}:norm", {"micro_batch": 11}))


def test_train_warns_on_stderr_and_in_the_record(train, capfd, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 2, "steps": 3, "checkpoint_every": 1}
    record = train(f"{HERE}:norm", **options)
    assert [sentence.startswith(f"{WARNS}layer 'layer' (BatchNorm1d)") for sentence in record.warnings] == [True]
    assert capfd.readouterr().err.count(f"warning: {WARNS}") == 1
    stored = json.loads((tmp_path / record.id / "record.json").read_text())
    assert stored["warnings"] == record.warnings
    resumed = train(f"{HERE}:norm", resume=record.id, steps=5)
    assert resumed.warnings == record.warnings
    assert capfd.readouterr().err.count(f"warning: {WARNS}") == 1
    assert train(f"{HERE}:norm", steps=2).warnings == []
    assert "warning" not in capfd.readouterr().err


def test_processes_put_the_warning_into_their_record_too(train) -> None:  # type: ignore[no-untyped-def]
    record = train(f"{HERE}:noise", engine="mpi", workers=2, steps=2)
    assert [sentence.startswith(f"{WARNS}a random layer") for sentence in record.warnings] == [True]


def test_folds_that_several_workers_share_are_warned_of(tmp_path: Path, capfd) -> None:  # type: ignore[no-untyped-def]
    options = {"folds": 2, "engine": "threads", "steps": 2, "baseline": False, "out": tmp_path}
    shared = manyhands.cross_validate(f"{HERE}:norm", workers=4, **options)  # type: ignore[arg-type]
    assert [sentence.startswith(WARNS) for sentence in shared.warnings] == [True]
    assert capfd.readouterr().err.count("warning: ") == 1
    alone = manyhands.cross_validate(f"{HERE}:norm", workers=2, **options)  # type: ignore[arg-type]
    assert alone.warnings == []


def test_an_optimiser_that_draws_is_refused_before_a_start() -> None:
    task = Task(model=lambda data: nn.Linear(12, 3), data=FLAT, optimizer=Noisy)
    with pytest.raises(UserError, match="the optimiser Noisy of 'own' draws random numbers"):
        preflight(make_config({"task": "own", "data": FLAT}), task)


class Noisy(torch.optim.SGD):
    """Adds noise to the weights."""

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[no-untyped-def]
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p), alpha=0.01)
        return super().step(closure)


def test_statistics_that_a_model_assigns_are_shared_like_others(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    task = model_task("assigned statistics")
    config = make_config({"task": "own", "data": FLAT, "batch_size": 12, "steps": 5, "dtype": "float64"})
    found = []
    for workers, engine in ((1, "serial"), (3, "threads")):
        record = execute(config.model_copy(update={"engine": engine, "workers": workers}), task=task, out=tmp_path)
        found.append(load_file(tmp_path / record.id / "model.safetensors")["mean"])
    assert found[0].abs().max() > 0
    assert torch.allclose(*found, rtol=1e-12)


@pytest.mark.parametrize("name", ["norm", "noise"])
def test_verify_knows_the_cause_that_train_warns_of(name: str) -> None:
    config = resolve(f"{HERE}:{name}", {"engine": "mpi", "workers": 2, "steps": 2})
    verdict = verify(config)
    assert not verdict.equal
    assert [f"{WARNS}{verdict.cause}"] == list(preflight(config).warnings)
    assert verdict.candidates[0] == verdict.cause


@pytest.mark.parametrize("engine", ["threads", "mpi"])
def test_workers_draw_what_one_worker_draws(engine: str, train, capfd) -> None:  # type: ignore[no-untyped-def]
    options = {"batch_size": 13, "steps": 4, "dtype": "float64"}
    config = resolve(f"{TINY}:draws", {**options, "engine": engine, "workers": 2})
    assert verify(config).equal
    alone, shared = (train(f"{TINY}:draws", engine=engine, workers=workers, steps=3, exact=True) for workers in (1, 2))
    assert alone.weights_sha256 == shared.weights_sha256
    assert alone.warnings == shared.warnings == []
    assert "warning" not in capfd.readouterr().err
