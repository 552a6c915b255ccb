"""Trainings of a simulation: the time to some accuracies, and figures of accuracy and loss against time."""

from collections.abc import Sequence
from dataclasses import replace

from manyhands.record.simulation import Estimate, SimulationRecord, TrainedRow
from manyhands.record.texts import accuracy_text, duration, fixed
from manyhands.report.drawing import Axis, Figure, Series, View, decades_axis, is_wide, listed
from manyhands.report.palette import DASHES, series_colour

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
"""Accuracies to choose from where no target was given."""
MOST_LEVELS = 3


def time_to(row: TrainedRow, accuracy: float) -> Estimate | None:
    """Return the nodes' seconds, with failures, to the first evaluation of at least this accuracy."""
    return next((row.time_at(point) for point in row.points if (point.accuracy or 0.0) >= accuracy), None)


def levels(record: SimulationRecord) -> list[float]:
    """Return the highest accuracies of `LEVELS` that a training reaches, and the target."""
    reached = [level for level in LEVELS if any(time_to(row, level) is not None for row in record.trained)]
    target = [record.target_accuracy] if record.target_accuracy is not None else []
    return sorted({*reached[-MOST_LEVELS:], *target})


def level_name(accuracy: float | None) -> str:
    """Return an accuracy as a percentage: 97.5 %."""
    return f"{100 * (accuracy or 0):.4g} %"


def trained_sentence(record: SimulationRecord) -> str:
    """Return a sentence on the first training at the target, or at the highest level that one reaches."""
    if not record.trained:
        return ""
    target = record.target_accuracy or max(levels(record), default=None)
    if all(row.test_accuracy is None for row in record.trained):
        best = min(record.trained, key=lambda row: row.test_loss)
        return f"The training with the lowest test loss, {_name(best)}, ends at {fixed(best.test_loss, 4)}."
    best = max(record.trained, key=lambda row: row.test_accuracy or 0.0)
    ends = f"{_name(best)}, ends at {accuracy_text(best.test_accuracy)}"
    if target is None:
        return f"The best training, {ends}."
    times = [(time_s.value, row) for row in record.trained if (time_s := time_to(row, target))]
    if not times:
        return f"No training reaches {level_name(target)} accuracy; the best, {ends}."
    seconds, first = min(times, key=lambda timed: timed[0])
    return f"{level_name(target)} accuracy is first reached by {_name(first)}, after {duration(seconds)}."


def _name(row: TrainedRow) -> str:
    return f"{row.sync} on {row.many}"


def trained_figures(record: SimulationRecord) -> list[Figure]:
    """Draw accuracy and loss against the nodes' time; nothing without evaluations."""
    if not any(row.points for row in record.trained):
        return []
    tested = all(point.accuracy is not None for row in record.trained for point in row.points)
    accuracy = _figure(
        record,
        "Accuracy",
        "Share of the test data guessed right at each evaluation, against the time of the simulated nodes, with "
        "failures where the cluster has some: what is further to the left learns sooner.",
        [[round(100 * (point.accuracy or 0.0), 4) for point in row.points] for row in record.trained],
        Axis(title="test accuracy", unit=" %"),
    )
    loss = _figure(
        record,
        "Loss",
        "Loss on the training data, mean since the evaluation before. Over epochs, strategies that keep one "
        "worker's answer lie over each other.",
        [[float(f"{point.loss:.5g}") for point in row.points] for row in record.trained],
        Axis(title="training loss"),
    )
    return [replace(accuracy, picture="accuracy"), loss] if tested else [loss]


def _figure(record: SimulationRecord, title: str, about: str, values: Sequence[list[float]], y: Axis) -> Figure:
    """Draw one curve for each training, coloured by strategy as in other figures, dashed by the number of nodes."""
    syncs = dict.fromkeys([*(row.sync for row in record.rows), *(row.sync for row in record.trained)])
    colours = {sync: series_colour(i) for i, sync in enumerate(syncs)}
    counts = {row.number: row.many for row in sorted(record.trained, key=lambda row: row.number)}
    dashes = {number: DASHES[i % len(DASHES)] for i, number in enumerate(counts)}
    legend = [
        Series(name=sync, colour=colours[sync], width=2.2, groups=[f"sync {sync}"])
        for sync in dict.fromkeys(row.sync for row in record.trained)
    ]
    for number, many in counts.items() if len(counts) > 1 else ():
        legend.append(Series(name=many, colour="muted", width=2.2, dash=dashes[number], groups=[f"nodes {number}"]))
    by_time = [
        _curve(row, ys, colours[row.sync], dashes[row.number]) for row, ys in zip(record.trained, values, strict=True)
    ]
    epochs = [[round(point.epoch, 4) for point in row.points] for row in record.trained]
    by_epoch = [replace(curve, x=xs) for curve, xs in zip(by_time, epochs, strict=True)]
    seconds, name = [x for curve in by_time for x in curve.x], "time on the simulated nodes (s)"
    time = decades_axis(name, seconds) if is_wide(seconds) else Axis(title=name, from_zero=True)
    ends = [f"{curve.name} ends at {curve.y[-1]:.4g}" for curve in by_time if curve.y]
    return Figure(
        id=f"trained-{title.lower()}",
        title=title,
        about=about,
        alt=listed(f"{title} of simulated trainings", ends),
        views=[
            View(label="time", items=[*legend, *by_time], x=time, y=y),
            View(label="epochs", items=[*legend, *by_epoch], x=Axis(title="epochs"), y=y),
        ],
        choose="Over",
    )


def _curve(row: TrainedRow, values: list[float], colour: str, dash: str) -> Series:
    seconds = [row.time_at(point).value for point in row.points]
    return Series(
        name=_name(row),
        x=seconds,
        y=values,
        colour=colour,
        width=2,
        dash=dash,
        hover=[
            f"{_name(row)}: {value:.4g} after {duration(time_s)}, epoch {fixed(point.epoch, 2)}"
            for value, time_s, point in zip(values, seconds, row.points, strict=True)
        ],
        in_legend=False,
        groups=[f"sync {row.sync}", f"nodes {row.number}"],
    )
