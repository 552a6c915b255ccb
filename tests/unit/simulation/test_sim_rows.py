"""What tables say of predicted steps: many rows at once are as one by one, and failures are rare events."""

import numpy as np
import pytest
from made_up_machine import ETHERNET
from scipy import stats

from manyhands.record.simulation import Estimate
from manyhands.simulation.predict import Predicted
from manyhands.simulation.request import WorkerCount
from manyhands.simulation.rows import WITHIN, Alone, make_rows, with_failures
from manyhands.virtual.events import StepSplit

ALONE = Alone(64, 0.010, tuple(np.linspace(0.009, 0.011, 10).tolist()), 0.03)


def predicted(workers: int) -> Predicted:
    """Make up a step of so many workers, which takes a little longer the more there are."""
    split = StepSplit(0.008, 0.002, 0.001 * workers, 0.0005)
    drawn_s = [split.step_s * (1 + 0.02 * np.sin(workers + k)) for k in range(10)]
    return Predicted(WorkerCount(workers, workers, 64 * workers, 6400), "allreduce", 0, "events", split, drawn_s, 0.05)


def test_many_rows_are_as_one_by_one() -> None:
    found = [predicted(n) for n in (1, 2, 40)]
    assert make_rows(found, ALONE, None) == [make_rows([each], ALONE, None)[0] for each in found]


def test_an_epoch_is_its_steps_and_as_sure() -> None:
    (row,) = make_rows([predicted(4)], ALONE, None)
    steps = 6400 // (64 * 4)
    for bound in ("value", "low", "high"):
        assert getattr(row.epoch_s, bound) == pytest.approx(steps * getattr(row.step_ms, bound) / 1e3)
        assert getattr(row.efficiency, bound) == pytest.approx(getattr(row.speed_up, bound) / 4)


@pytest.mark.parametrize("hours", [0.01, 0.3, 1.0, 40.0, 1000.0, 1e6])
def test_lost_time_is_of_a_poisson_number_of_failures(hours: float) -> None:
    cluster = ETHERNET.model_copy(update={"mtbf_hours": 100.0, "restart_s": 7.0})
    sound_s = 3600 * hours
    epoch_s, expected = with_failures(Estimate(sound_s, sound_s, sound_s), 5, cluster)
    assert expected == pytest.approx(hours * 5 / 100)
    least, most = stats.poisson.ppf(WITHIN, expected)
    assert epoch_s.low == min(epoch_s.value, sound_s + 7 * least)
    assert epoch_s.high == max(epoch_s.value, sound_s + 7 * most)


def test_failures_without_end_are_numbers_still() -> None:
    cluster = ETHERNET.model_copy(update={"mtbf_hours": 1e-3, "restart_s": 1e-3})
    epoch_s, expected = with_failures(Estimate(1e18, 1e18, 1e18), 5, cluster)
    assert epoch_s.low - 1e18 == pytest.approx(1e-3 * expected, rel=2e-3)
    assert epoch_s.high - 1e18 == pytest.approx(1e-3 * expected, rel=2e-3)
