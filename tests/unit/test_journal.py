"""What a run writes down on its way: a line a step, the mean loss of an epoch, a pulse for people."""

import json
from pathlib import Path

import pytest

from manyhands.record import Pulse, find_run


def _losses(out: Path, run_id: str) -> list[float]:
    return [json.loads(line)["loss"] for line in find_run(out, run_id).steps.read_text().splitlines()]


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
