"""What a run writes down on its way: a line a step, the mean loss of an epoch, a pulse for people."""

import json
import random
from pathlib import Path

import pytest

from manyhands.record.run import Pulse, RunDir, read_steps
from manyhands.report.losses import loss_curve
from manyhands.training.checkpoint import checkpoints
from manyhands.training.journal import _keep_lines


def _losses(out: Path, run_id: str) -> list[float]:
    return [step["loss"] for step in read_steps(RunDir.find(out, run_id))]


def test_an_epochs_loss_is_the_mean_over_its_samples(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    record = train(epochs=2, batch_size=40)
    losses = _losses(tmp_path, record.id)
    for epoch, mean in enumerate(record.train_loss):
        weighted = zip((40, 40, 17), losses[3 * epoch : 3 * epoch + 3], strict=True)
        assert mean == pytest.approx(sum(rows * loss for rows, loss in weighted) / 97)


def test_an_unfinished_epoch_counts_what_it_saw(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    record = train(steps=5, batch_size=40)
    losses = _losses(tmp_path, record.id)
    assert (record.epochs, record.samples) == (2, 97 + 80)
    assert record.train_loss[1] == pytest.approx(sum(losses[3:]) / 2)


def test_pulses_follow_the_run_to_its_end(train) -> None:  # type: ignore[no-untyped-def]
    pulses: list[Pulse] = []
    record = train(engine="threads", workers=2, epochs=3, batch_size=10, observe=pulses.append)
    assert pulses[-1].step == pulses[-1].steps == record.steps == 30
    steps = [p.step for p in pulses]
    assert steps == sorted(set(steps))
    assert [p.epoch for p in pulses] == [-(-p.step // 10) for p in pulses]
    assert {p.epochs for p in pulses} == {3}
    assert pulses[0].accuracy is None, "nothing is tested before the first epoch ends"
    assert pulses[-1].accuracy is not None
    assert pulses[-1].eta_s == 0


def test_evaluations_do_not_change_the_run(train) -> None:  # type: ignore[no-untyped-def]
    often, seldom = train(epochs=4, eval_every=1), train(epochs=4, eval_every=3)
    assert often.weights_sha256 == seldom.weights_sha256
    assert (often.test_loss, often.test_accuracy) == (seldom.test_loss, seldom.test_accuracy)


def _line(step: int) -> str:
    return json.dumps({"step": step, "loss": 1.0 / step, "ms": 0.5})


def _steps(run: RunDir) -> list[int]:
    return [int(step["step"]) for step in read_steps(run)]


def test_wherever_the_file_was_cut_off_its_whole_lines_are_kept_and_the_rest_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path)
    whole = "".join(f"{_line(step)}\n" for step in range(1, 31)).encode()
    for length in [*random.Random(0).sample(range(len(whole)), 40), len(whole)]:
        run.steps.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n") + (whole[length - 1 : length] == b"}")
        _keep_lines(run, 20)
        assert _steps(run) == list(range(1, min(20, lines) + 1))
        said = capsys.readouterr().err
        assert (f"lacks {20 - lines} of the 20 steps before the checkpoint" in said) == (lines < 20)


def test_steps_that_two_processes_wrote_are_kept_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    lines = ["", "[]", '{"step": "x"}', '{"step": 3, "loss": null}', *map(_line, [1, 2, 3, 2, 3, 4]), "[" * 9999]
    run.steps.write_text("\n".join(lines))
    _keep_lines(run, 3)
    assert _steps(run) == [1, 2, 3]


def test_losses_near_the_largest_number_are_drawn(tmp_path: Path) -> None:
    losses = [1.0] * 396 + [1.5e308] * 4
    lines = [json.dumps({"step": i + 1, "loss": loss, "ms": 1.0}) for i, loss in enumerate(losses)]
    RunDir(tmp_path).steps.write_text("\n".join(lines) + "\n")
    curve = loss_curve(RunDir(tmp_path))
    assert curve is not None
    assert curve.step[-1] == 400


def test_a_run_whose_steps_are_damaged_goes_on_and_its_curve_is_drawn(train, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    record = train(steps=12, checkpoint_every=4, keep=9)
    run = RunDir.find(tmp_path, record.id)
    run.record.unlink()
    checkpoints(run.checkpoints)[-1].unlink()
    text = run.steps.read_text().splitlines()
    run.steps.write_text("\n".join([*text[:5], text[5][:9]]))
    curve = loss_curve(run)
    assert curve is not None
    assert curve.step == [1, 2, 3, 4, 5]
    resumed = train(resume=record.id)
    assert resumed.weights_sha256 == record.weights_sha256
    assert f"manyhands: '{run.steps}' lacks 3 of the 8 steps" in capsys.readouterr().err
    assert _steps(run) == [1, 2, 3, 4, 5, 9, 10, 11, 12]
    curve = loss_curve(run)
    assert curve is not None
    assert curve.step == [1, 2, 3, 4, 5, 9, 10, 11, 12]
