"""Evaluations and what comes of them: a history, early stopping, the best weights, and averages of the weights."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measured import TEST_ROWS, sizes
from safetensors.torch import load_file
from torch.optim.lr_scheduler import ReduceLROnPlateau

from manyhands import RunRecord
from manyhands.errors import UserError
from manyhands.record.run import EvaluationRecord, Pulse, RunDir
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.training.checkpoint import checkpoints
from manyhands.training.monitor import Monitor

FILE = Path(__file__).with_name("measured.py")
SIZES = f"{FILE}:sizes"
RESULT = ("weights_sha256", "history", "train_loss", "test_loss", "metrics", "best_step", "stopped_early", "steps")


def _result(record: RunRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in RESULT}


def _lines(out: Path, record: RunRecord) -> list[str]:
    lines = RunDir.find(out, record.id).steps.read_text().splitlines()
    return [line.partition(', "ms"')[0] for line in lines]


def _kill_after(out: Path, record: RunRecord, step: int) -> None:
    """Leave the run's folder as if it had been killed a little after its checkpoint of this step."""
    run = RunDir.find(out, record.id)
    run.record.unlink()
    for path in checkpoints(run.checkpoints):
        if path.name > f"step-{step:09d}.safetensors":
            path.unlink()


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_history_is_the_same_on_every_engine(train, ema: float) -> None:  # type: ignore[no-untyped-def]
    settings = {"exact": True, "epochs": 2, "eval_steps": 3, "ema": ema, "keep_best": True, "monitor": "mae"}
    serial = train(SIZES, **settings)
    assert [evaluation.step for evaluation in serial.history] == [3, 6, 9, 10]
    assert [evaluation.epoch for evaluation in serial.history] == [0.6, 1.2, 1.8, 2.0]
    assert all(len(evaluation.metrics) == 6 for evaluation in serial.history)
    for engine, workers in (("threads", 2), ("threads", 5), ("mpi", 3)):
        assert _result(train(SIZES, engine=engine, workers=workers, **settings)) == _result(serial)


def test_evaluations_between_steps_change_nothing_but_the_history(train) -> None:  # type: ignore[no-untyped-def]
    seldom, often = train(SIZES, epochs=2), train(SIZES, epochs=2, eval_steps=2)
    assert often.weights_sha256 == seldom.weights_sha256
    assert often.history[-1] == seldom.history[-1]
    assert (len(seldom.history), len(often.history)) == (2, 5)


def test_evaluations_are_lines_among_the_steps(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    record = train(SIZES, epochs=1, eval_steps=2)
    lines = [json.loads(line) for line in RunDir.find(tmp_path, record.id).steps.read_text().splitlines()]
    places = [("step", line["step"]) if "step" in line else ("evaluation", line["evaluation"]) for line in lines]
    assert [place for place in places if place[0] == "evaluation"] == [(("evaluation"), step) for step in (2, 4, 5)]
    assert [step for kind, step in places if kind == "step"] == [1, 2, 3, 4, 5]
    assert places.index(("evaluation", 2)) == places.index(("step", 2)) + 1
    assert lines[-1]["metrics"] == record.metrics
    assert lines[-1]["test_accuracy"] is record.test_accuracy is None


@pytest.mark.parametrize("sync", ["allreduce", "local-sgd:period=3", "gossip", "parameter-server:servers=2", "sharded"])
@pytest.mark.parametrize("at", [4, 5, 12])
def test_resumed_is_uninterrupted(train, tmp_path: Path, sync: str, at: int) -> None:  # type: ignore[no-untyped-def]
    """History, best weights and averages; before an evaluation, at one, and after the best one."""
    settings = {"engine": "threads", "workers": 2, "sync": sync, "epochs": 4, "eval_steps": 5, "lr": 0.3}
    settings |= {"ema": 0.8, "keep_best": True, "monitor": "mse"}
    whole = train(SIZES, **settings)
    part = train(SIZES, **settings, checkpoint_every=at, keep=9)
    _kill_after(tmp_path, part, at)
    resumed = train(SIZES, resume=part.id)
    assert resumed.resumed_from == at
    assert _result(resumed) == _result(whole)
    assert _lines(tmp_path, resumed) == _lines(tmp_path, whole)


def test_a_run_that_was_stopped_at_an_evaluation_goes_on_as_if_it_had_not(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def stop(pulse: Pulse) -> None:
        if pulse.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    whole = train(SIZES, epochs=3)
    part = train(SIZES, epochs=3, checkpoint_every=50, observe=stop)
    assert part.status == "interrupted"
    resumed = train(SIZES, resume=part.id)
    assert _result(resumed) == _result(whole)
    assert _lines(tmp_path, resumed) == _lines(tmp_path, whole)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_that_no_longer_gets_better_ends(train, tmp_path: Path, workers: int) -> None:  # type: ignore[no-untyped-def]
    """At such a learning rate the loss falls, and then rises again."""
    settings = {"engine": "threads", "workers": workers, "epochs": 30, "lr": 0.2, "exact": True}
    record = train(SIZES, **settings, patience=3, keep_best=True)
    losses = [evaluation.test_loss for evaluation in record.history]
    best = losses.index(min(losses))
    assert record.stopped_early
    assert record.status == "complete"
    assert len(losses) == best + 4 < 30
    assert record.steps == record.history[-1].step == 5 * len(losses)
    assert record.best_step == record.history[best].step
    assert record.test_loss == losses[best]
    until = train(SIZES, **settings, steps=record.best_step)
    assert until.weights_sha256 == record.weights_sha256, "the weights of the best evaluation were kept"
    last = train(SIZES, **settings, patience=3)
    assert (last.steps, last.best_step, last.test_loss) == (record.steps, None, losses[-1])
    assert last.weights_sha256 != record.weights_sha256


def test_a_run_that_ended_early_goes_on_with_more_patience_alone(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    settings = {"epochs": 30, "lr": 0.2, "checkpoint_every": 5}
    record = train(SIZES, **settings, patience=2)
    assert record.stopped_early
    with pytest.raises(UserError, match=r"has stopped early at step \d+; raise --patience to go on"):
        train(SIZES, resume=record.id)
    further = train(SIZES, resume=record.id, patience=4)
    whole = train(SIZES, **settings, patience=4)
    assert _result(further) == _result(whole)


def _evaluations(*losses: float) -> list[EvaluationRecord]:
    return [EvaluationRecord(step=i, epoch=i, test_loss=loss) for i, loss in enumerate(losses)]


def test_an_equal_figure_is_no_better_one() -> None:
    monitor = Monitor("test_loss", "lower", patience=2, keeps_best=True)
    assert not monitor.is_over([])
    assert not monitor.is_over(_evaluations(3, 2, 2))
    assert monitor.is_over(_evaluations(3, 2, 2, 2))
    assert not monitor.is_over(_evaluations(3, 2, 2, 1))
    best = monitor.best(_evaluations(3, 2, 2, 5))
    assert best is not None
    assert best.step == 1
    assert not Monitor("test_loss", "lower", patience=0, keeps_best=True).is_over(_evaluations(1, 2, 3))
    assert Monitor("test_loss", "higher", patience=2, keeps_best=True).is_over(_evaluations(3, 2, 1))


def test_a_rate_that_goes_by_the_figures_goes_by_the_same_ones(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    task = replace(sizes, scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode="max"))
    with pytest.raises(UserError, match="watches test_loss, of which lower is better, but its mode is not 'min'"):
        train(task)
    for monitor in ("ranks", "plain"):  # of which more is better, and of which nothing is known
        part = train(task, monitor=monitor, checkpoint_every=3)
    with pytest.raises(UserError, match="has eval-every 1, and ReduceLROnPlateau goes by its evaluations"):
        train(task, resume=part.id, epochs=2, eval_every=2)
    assert train(task, resume=part.id, epochs=2).steps == 10


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"monitor": "plain"}, "a higher or a lower 'plain' is better; write metrics={\"plain\": manyhands.Metric"),
        ({"monitor": "rmse"}, "there is no figure to monitor named 'rmse'; did you mean 'mse'?.*test_loss, mae"),
        ({"monitor": "test_accuracy"}, "monitor test_accuracy, but the targets of this task are no classes"),
    ],
)
@pytest.mark.parametrize("watching", [{"patience": 2}, {"keep_best": True}])
def test_what_cannot_be_monitored_is_refused(train, settings, watching, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=says):
        train(SIZES, **settings, **watching)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"patience": 2, "epochs": 3}, "--patience 2 cannot end this run, which is tested 2 times before its end"),
        ({"patience": 2, "epochs": 4}, ""),
        ({"monitor": "mse"}, "--monitor mse does nothing without --patience, --keep-best or ReduceLROnPlateau"),
        ({"monitor": "mse", "keep_best": True}, ""),
        (
            {"scheduler": ReduceLROnPlateau},
            "ReduceLROnPlateau cannot change the rate of this run, which is tested 0 ",
        ),
        ({"scheduler": ReduceLROnPlateau, "epochs": 2}, ""),
    ],
)
def test_settings_that_do_nothing_are_said(settings: dict[str, object], says: str) -> None:
    options = {name: value for name, value in settings.items() if name != "scheduler"}
    task = replace(sizes, scheduler=settings.get("scheduler"))
    warnings = preflight(resolve("sizes", options, task), task).warnings
    assert [sentence[: len(says)] for sentence in warnings] == ([says] if says else [])


def test_a_replay_is_tested_between_epochs_only(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = train(SIZES, engine="threads", workers=2, sync="async-server")
    replay = f"async-server:replay={tmp_path / first.id}"
    with pytest.raises(UserError, match="meet at the end of an epoch only; leave --eval-steps out"):
        train(SIZES, engine="threads", workers=2, sync=replay, eval_steps=2)


def _weights(out: Path, record: RunRecord) -> torch.Tensor:
    stored = load_file(RunDir.find(out, record.id).model)
    return torch.cat([stored[name].flatten().double() for name in sorted(stored)])


@pytest.mark.parametrize("sync", ["allreduce", "local-sgd:period=2", "average-once", "gossip", "parameter-server"])
def test_the_average_is_that_of_the_weights_after_every_step(train, tmp_path: Path, sync: str) -> None:  # type: ignore[no-untyped-def]
    """Of workers that hold different weights, it is the average of their mean."""
    settings = {"engine": "threads", "workers": 2, "sync": sync, "dtype": "float64"}
    average = _weights(tmp_path, train(f"{FILE}:with_batchnorm", **settings, steps=5, ema=0.7))
    start = _weights(tmp_path, train(f"{FILE}:with_batchnorm", **settings, steps=1, lr=0))
    after = [_weights(tmp_path, train(f"{FILE}:with_batchnorm", **settings, steps=step)) for step in range(1, 6)]
    expected = start
    for weights in after:
        expected = 0.7 * expected + 0.3 * weights
    trained = _trained(tmp_path, expected)
    assert torch.allclose(average[trained], expected[trained], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(average[trained], after[-1][trained], rtol=1e-3)


def _trained(out: Path, like: torch.Tensor) -> torch.Tensor:
    """Tell which of the values are weights: without a step, statistics and counters have no values to compare."""
    stored = load_file(RunDir.all_in(out)[0].model)
    others = ("running", "num_batches")
    parts = [torch.full((stored[name].numel(),), not any(o in name for o in others)) for name in sorted(stored)]
    return torch.cat(parts)


def test_asynchronous_workers_average_what_they_receive(train) -> None:  # type: ignore[no-untyped-def]
    settings = {"engine": "threads", "workers": 2, "sync": "async-server", "epochs": 3}
    record = train(SIZES, **settings, ema=0.5, keep_best=True, checkpoint_every=4)
    assert record.best_step in (5, 10, 15)
    assert record.metrics["mse"] < 60, "it has learned"
    assert train(SIZES, resume=record.id, epochs=5).steps == 25


def test_a_task_without_classes_has_metrics_in_its_pulses(train) -> None:  # type: ignore[no-untyped-def]
    pulses: list[Pulse] = []
    record = train(SIZES, epochs=2, observe=pulses.append)
    assert TEST_ROWS > 1000
    assert record.test_accuracy is None
    assert pulses[-1].accuracy is None
    assert pulses[-1].metrics == record.history[0].metrics
