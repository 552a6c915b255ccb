"""The trainings of examples/own_work give one worker's answer on 2 and 4 workers."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import manyhands
from manyhands.record.run import RunRecord

EXAMPLES = Path(__file__).parents[2] / "examples" / "own_work"
OPTIONS = {
    "characters": {"steps": 4, "batch_size": 10},
    "fine_tuning": {"epochs": 2, "data": "mnist:train=200,test=100"},
    "multilabel": {"steps": 6, "batch_size": 13},
    "regression": {"epochs": 2},
    "resnet_images": {"steps": 2, "batch_size": 7},
    "sequences": {"steps": 6, "batch_size": 9},
}
"""Short runs with batches that 2 and 4 workers cannot share out evenly."""


def _train(name: str, out: Path, **options: object) -> tuple[RunRecord, dict[str, torch.Tensor]]:
    settings = {"dtype": "float64", "out": out, "blas_threads": 1, **OPTIONS[name], **options}
    variable = "narrow" if name == "resnet_images" else "task"
    record = manyhands.train(f"{EXAMPLES / name}.py:{variable}", **settings)  # type: ignore[arg-type]
    return record, load_file(out / record.id / "model.safetensors")


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == OPTIONS.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_two_and_four_workers_give_the_answer_of_one(name: str, tmp_path: Path) -> None:
    alone, weights = _train(name, tmp_path, engine="serial")
    for engine, workers in (("threads", 2), ("threads", 4), ("mpi", 2)):
        if engine == "mpi" and name != "resnet_images":  # one is enough: the conformance suite has the engines
            continue
        record, theirs = _train(name, tmp_path, engine=engine, workers=workers)
        assert record.warnings == []
        assert record.test_loss == pytest.approx(alone.test_loss, rel=1e-9)
        assert record.train_loss == pytest.approx(alone.train_loss, rel=1e-9)
        assert record.metrics == pytest.approx(alone.metrics, rel=1e-9, abs=1e-12)
        for tensor, value in weights.items():
            torch.testing.assert_close(theirs[tensor], value, rtol=1e-8, atol=1e-10, msg=f"{workers} workers: {tensor}")


def test_fine_tuning_begins_with_given_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fine_tuning.py"])
    runpy.run_path(str(EXAMPLES / "fine_tuning.py"), run_name="__main__")
    before, after = (float(word) for word in capsys.readouterr().out.split() if word.replace(".", "").isdigit())
    assert after > before
