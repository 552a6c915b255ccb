"""What `train` says beside its table: the threads it chose, and that others used the cores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands import RunRecord
from manyhands.cli.train import show
from manyhands.record.run import Others

OUT = Path("runs")


def test_threads_chosen_and_others_are_said_only_where_there_is_something_to_say(
    train: Callable[..., RunRecord], capfd: pytest.CaptureFixture[str]
) -> None:
    record = train(engine="serial", blas_threads=1)
    quiet = record.model_copy(update={"others": Others(host="here", cores=0.1, of=2.0, wanted=2)})
    show(quiet, OUT)
    said = capfd.readouterr().err
    assert "matrix products" not in said
    assert "other programs" not in said
    config = record.config.model_copy(update={"blas_threads": 0, "chosen_blas_threads": 1})
    others = Others(host="here", cores=1.7, of=2.0, wanted=1)
    show(record.model_copy(update={"config": config, "others": others}), OUT)
    said = capfd.readouterr().err
    assert "matrix products used 1 thread in each worker, by a short trial; --blas-threads sets it" in said
    assert "other programs used 1.7 of 2 cores meanwhile: on a quiet machine it is faster" in said
    show(record.model_copy(update={"engine": "sim", "others": others}), OUT)
    assert "other programs" not in capfd.readouterr().err, "its clocks stand still"


def test_the_command_that_goes_on_names_the_folder_of_the_run(
    train: Callable[..., RunRecord], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = train(engine="serial", checkpoint_every=5).model_copy(update={"status": "interrupted"})
    show(record, OUT)
    assert f"--resume-from {record.id}\n" in capfd.readouterr().err
    show(record, tmp_path / "my runs")
    assert f"--resume-from {record.id} --out '{tmp_path}/my runs'\n" in capfd.readouterr().err
