"""Predicted figures of the papers' rows: which rows have them, from what, and how they are judged."""

from math import ceil

import pytest
from faked_papers import taken
from hypothesis import given
from hypothesis import strategies as st

from manyhands import tasks
from manyhands.calibration.engines import MODELS
from manyhands.model.cluster import READY_CLUSTERS
from manyhands.record.papers import Prediction, ReproducedRow
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import HostFacts
from manyhands.reproduction.compare import compare
from manyhands.reproduction.papers import ALL, PAPERS, papers_of
from manyhands.reproduction.predict import calibrations, needed
from manyhands.reproduction.predicted import busiest_share
from manyhands.reproduction.readings import Readings
from manyhands.reproduction.run import plan


def test_every_row_beyond_the_cores_is_predicted_or_says_why_not() -> None:
    needs = needed(papers_of(ALL, HostFacts(2)), 2)
    assert {need.setting.options["engine"] for need in needs if not need.engine} == {"hybrid"}
    for need in needs:
        assert need.setting.workers > 2
        assert not need.engine or need.engine in MODELS
        assert not need.network or need.network in READY_CLUSTERS


def test_sixteen_cores_need_no_prediction() -> None:
    assert not needed(papers_of(ALL, HostFacts(16, 1)), 16)


def test_tasks_to_calibrate_have_the_data_of_their_settings() -> None:
    names = {task.task.rpartition("/")[2]: task for task in calibrations(needed(papers_of(ALL, HostFacts(2)), 2))}
    built_in = {"softmax", "mlp", "mlp-sigmoid", "cnn", "recommender"}
    assert names.keys() == built_in | {f"variants.py:{name}" for name in ("softmax_56", "softmax_112", "dnn_tweets")}
    assert names["mlp"].engines == ("mpi", "threads")
    variant = tasks.load(names["variants.py:softmax_56"].task)
    assert callable(variant.data)
    assert variant.data().train.shape[1:] == (56, 56)
    assert tasks.load(names["variants.py:dnn_tweets"].task).data == "tweets"


def row_of(published_speed_up_of: str, step_s: Interval, *, alone_s: float = 0.1) -> ReproducedRow:
    """Return a row of paper 002's table 1 on two cores, predicted to take `step_s`."""
    paper = PAPERS["002"](HostFacts(2))
    settings = plan([paper], quick=False)
    predictions = [
        Prediction(setting=setting.key, how="by hand", step_s=step_s, alone_s=alone_s) for setting in settings
    ]
    result = compare(paper, Readings(map(taken, settings), quick=False), 2, predictions)
    return next(row for row in result.tables[0].rows if row.labels == [published_speed_up_of])


@given(st.floats(0.01, 10), st.floats(0.5, 1), st.floats(1, 2))
def test_a_predicted_speed_up_is_the_ratio_of_predicted_times(step_s: float, low: float, high: float) -> None:
    row = row_of("4", Interval(value=step_s, low=low * step_s, high=high * step_s))
    time_s, speed_up, cost = (figure.predicted for figure in row.figures)
    assert time_s
    assert speed_up
    assert cost is None, "a prediction is of time alone"
    assert time_s.value == pytest.approx(10 * 10 * step_s)  # ten iterations, of ten steps each in the made-up runs
    assert speed_up.value == pytest.approx(0.1 / step_s)
    assert speed_up.low <= speed_up.value * (1 + 1e-9)
    assert speed_up.value <= speed_up.high * (1 + 1e-9)
    assert row.verdict == "oversubscribed"


@pytest.mark.parametrize(
    ("speed_up", "verdict", "words"),
    [
        (2.9, "agrees", "speed-up predicted: agrees"),
        (4.0, "above", "speed-up predicted: disagrees, above"),
        (1.2, "below", "speed-up predicted: disagrees, below"),
    ],
)
def test_predictions_are_judged_in_their_own_words(speed_up: float, verdict: str, words: str) -> None:
    step_s = 0.1 / speed_up
    row = row_of("4", Interval(value=step_s, low=0.99 * step_s, high=1.01 * step_s))
    predicted = row.figures[1].predicted
    assert predicted
    assert predicted.verdict == verdict
    assert words in row.why
    assert "reproduced" not in row.why.partition("predicted")[2]


def test_rows_that_fit_the_cores_have_no_prediction() -> None:
    row = row_of("2", Interval(value=0.05, low=0.04, high=0.06))
    assert not any(figure.predicted for figure in row.figures)


def test_folds_of_nodes_that_took_turns_are_scheduled_at_once() -> None:
    paper = PAPERS["004"](HostFacts(2))
    result = compare(paper, Readings(map(taken, plan([paper], quick=False)), quick=False), 2)
    split, unsplit = (next(t for t in result.tables if t.name == name).rows[-1] for name in ("table 8", "table 7"))
    for row, saved_pct in ((split, 100 * (1 - 1 / 8 / 0.9)), (unsplit, 80.0)):
        improvement = next(figure for figure in row.figures if figure.kind == "improvement")
        assert improvement.predicted
        assert improvement.predicted.value == pytest.approx(saved_pct)
    claim = result.tables[-1].rows[-1]
    assert claim.verdict == "oversubscribed"
    assert "predicted: agrees" in claim.why


@given(st.integers(2, 40), st.integers(1, 40))
def test_the_busiest_worker_has_the_rounded_up_share(folds: int, workers: int) -> None:
    share = busiest_share(folds, workers)
    assert share * folds == pytest.approx(ceil(folds / workers))
    assert 1 / workers <= share + 1e-12 <= 1 + 1e-12
