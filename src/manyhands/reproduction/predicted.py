"""Figures of predicted settings, beside the measured ones: the same columns, with verdicts of their own."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from manyhands.measurement import stats
from manyhands.record.papers import PredictedFigure, PredictedVerdict, Prediction, Verdict
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import PaperColumn, PaperRow, Setting, Values
from manyhands.reproduction.readings import Readings
from manyhands.reproduction.verdict import SPEEDS, judge

WORDS: dict[Verdict, PredictedVerdict] = {
    "reproduced": "agrees",
    "better": "above",
    "not": "below",
    "not judged": "too wide",
}
"""Verdicts of predictions for those that a measured figure would have."""


class PredictedTime(NamedTuple):
    """A time of a row that was predicted, and that of its base."""

    time_s: Interval
    base_s: float
    how: str


def predicted_figure(
    column: PaperColumn, row: PaperRow, readings: Readings, predictions: Mapping[str, Prediction], cores: int
) -> PredictedFigure | None:
    """Return a row's figure as predicted, if it is one of speed and the row has more workers than cores."""
    if row.timed is None or column.whole or row.timed.workers <= cores:
        return None
    if row.timed.command == "crossval":
        predicted = scheduled(row.timed, row.base, readings) if column.of == "total_s" else None
    else:
        predicted = _simulated(column.of, row.timed, row.base, readings, predictions)
    if predicted is None or (column.kind in SPEEDS and not predicted.base_s):
        return None
    time_s, base_s, how = predicted
    match column.kind:
        case "time":
            figure = stats.through(lambda s: column.scale * s, time_s)
        case "speed-up":
            figure = stats.through(lambda s: base_s / s, time_s)
        case "improvement":
            figure = stats.through(lambda s: stats.improvement_pct(base_s / s), time_s)
        case _:
            return None
    published = row.published.get(column.name)
    verdict: PredictedVerdict = ""
    if published and not column.unjudged:
        verdict = WORDS.get(judge(column.kind, published, figure), "")
    return PredictedFigure(value=figure.value, low=figure.low, high=figure.high, how=how, verdict=verdict)


def _simulated(
    name: str, setting: Setting, base: Setting | None, readings: Readings, predictions: Mapping[str, Prediction]
) -> PredictedTime | None:
    """Return the predicted time of a step or an epoch; runs tell how many steps an epoch has."""
    prediction = predictions.get(setting.key)
    if prediction is None or prediction.step_s is None or name not in ("step_s", "epoch_s"):
        return None
    steps, base_steps = 1.0, 1.0
    if name == "epoch_s":
        steps = readings.medians(setting).get("steps_per_epoch", math.nan)
        base_steps = readings.medians(base).get("steps_per_epoch", math.nan) if base else 0.0
    if math.isnan(steps + base_steps):
        return None
    time_s = stats.through(lambda s: steps * s, prediction.step_s)
    return PredictedTime(time_s, base_steps * prediction.alone_s, prediction.how)


def scheduled(setting: Setting, base: Setting | None, readings: Readings) -> PredictedTime | None:
    """Return the time of a cross-validation in which each node has a core of its own.

    Nodes that split the data exchange nothing until they are done: all take as long as the slowest, which was measured.
    Workers that share out whole folds take as long as the one with the most, by the time of one worker.
    """
    alone = readings.medians(base) if base else {}
    base_s = alone.get("total_s", 0.0)
    if "nodes" in setting.options:
        if readings.missing(setting):
            return None
        time_s = readings.value(setting, "longest_node_s", 1.0)
        return PredictedTime(time_s, base_s, "the slowest of the nodes as measured, if all train at once")
    if base is None or readings.missing(base):
        return None
    share = busiest_share(int(setting.options["folds"]), setting.workers)
    how = "the folds of the busiest worker, at the time that a fold takes one worker alone"
    return PredictedTime(readings.value(base, "total_s", share), base_s, how)


def busiest_share(folds: int, workers: int) -> float:
    """Return the share of all folds that the worker with the most trains, if each trains whole folds."""
    return math.ceil(folds / workers) / folds


def with_schedule(setting: Setting, readings: Readings, cores: int) -> Values:
    """Return a setting's values; of nodes that took turns, with the time that they would take at once."""
    values = readings.medians(setting)
    if setting.command != "crossval" or setting.workers <= cores or "nodes" not in setting.options:
        return values
    return {**values, "total_s": values["longest_node_s"]}
