"""A thread that fails ends a hybrid run, even where its process's first thread waits inside MPI."""

from pathlib import Path

import crossed
import pytest

from manyhands import launch
from manyhands.config import make_config
from manyhands.errors import RankFailed
from manyhands.record.run import RunDir, open_run
from manyhands.run import ignore
from manyhands.training.job import Job


@pytest.mark.timeout(60, method="signal")  # so that a run that hangs fails a test instead of ending the session
def test_a_failed_thread_ends_the_run_though_others_wait_for_messages(tmp_path: Path) -> None:
    config, run = make_config({"task": "mlp", "engine": "hybrid", "workers": 2, "threads": 2}), RunDir(tmp_path / "run")
    open_run(run, config)
    with pytest.raises(RankFailed, match="ZeroDivisionError") as caught:
        launch.make("hybrid").launch(crossed.worker, Job(config, run), ignore)
    assert (caught.value.rank, caught.value.step) == (1, 4)
