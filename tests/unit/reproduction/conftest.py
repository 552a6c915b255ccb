"""No test of reproductions calibrates: predictions are made up, on a machine of two cores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manyhands.record.papers import Prediction
from manyhands.record.sweep import Interval
from manyhands.reproduction import run
from manyhands.reproduction.base import HostFacts
from manyhands.reproduction.predict import Calibrated, Needed

CALIBRATED: list[Calibrated] = []


def ideal(task: Calibrated, needs: list[Needed], path: Path, say: Callable[[str], None]) -> list[Prediction]:
    """Note what would be calibrated, and predict that workers are ideal."""
    CALIBRATED.append(task)
    return [
        Prediction(
            setting=need.setting.key,
            how="ideal",
            step_s=Interval(value=0.1 / need.setting.workers, low=0.09 / need.setting.workers, high=0.1),
            alone_s=0.1,
        )
        for need in needs
        if need.engine and need.task == task.task
    ]


@pytest.fixture(autouse=True, scope="session")
def without_calibration() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "predict", ideal)
        patch.setattr(run, "this_machine", lambda: HostFacts(2))
        yield


@pytest.fixture
def calibrated() -> list[Calibrated]:
    """Return the calibrations that the test has caused so far."""
    CALIBRATED.clear()
    return CALIBRATED
