"""Figures of what was trained as many nodes would: accuracy and loss against their time."""

from collections.abc import Sequence
from dataclasses import replace

from manyhands.record.simulation import SimulationRecord, TrainedRow
from manyhands.record.texts import duration, fixed
from manyhands.report.drawing import Axis, Figure, Series, View, decades_axis, is_wide
from manyhands.report.palette import DASHES, series_colour
from manyhands.report.scores import grouped


def trained_figures(record: SimulationRecord) -> list[Figure]:
    """Draw accuracy and loss against the nodes' time."""
    if not any(row.points for row in record.trained):
        return []
    return [
        _figure(
            record,
            "accuracy",
            "Accuracy",
            "Share of the test data guessed right at each evaluation, against the time of the simulated nodes, with "
            "failures where the cluster has some: what is further to the left learns sooner.",
            [[round(100 * point.accuracy, 4) for point in row.points] for row in record.trained],
            Axis(title="test accuracy", unit=" %"),
            picture="accuracy",
        ),
        _figure(
            record,
            "loss",
            "Loss",
            "Loss on the training data, mean since the evaluation before. Over epochs, strategies that keep one "
            "worker's answer lie over each other.",
            [[float(f"{point.loss:.5g}") for point in row.points] for row in record.trained],
            Axis(title="training loss"),
        ),
    ]


def training_name(row: TrainedRow) -> str:
    """Name a training: `allreduce on 8 nodes`."""
    return f"{row.sync} on {row.many}"


def _figure(
    record: SimulationRecord,
    name: str,
    title: str,
    about: str,
    values: Sequence[list[float]],
    y: Axis,
    picture: str = "",
) -> Figure:
    by_time = [_curve(record, row, own) for row, own in zip(record.trained, values, strict=True)]
    epochs = [[round(point.epoch, 4) for point in row.points] for row in record.trained]
    by_epoch = [replace(curve, x=own) for curve, own in zip(by_time, epochs, strict=True)]
    keys = _keys(record)
    ends = "; ".join(f"{curve.name} ends at {curve.y[-1]:.4g}" for curve in by_time if curve.y)
    return Figure(
        id=f"trained-{name}",
        title=title,
        about=about,
        says=f"{title} of simulated trainings. {ends}.",
        views=[
            View(label="time", items=[*keys, *by_time], x=_time_axis([t for curve in by_time for t in curve.x]), y=y),
            View(label="epochs", items=[*keys, *by_epoch], x=Axis(title="epochs"), y=y),
        ],
        choose="Over",
        picture=picture,
    )


def _time_axis(seconds: Sequence[float]) -> Axis:
    title = "time on the simulated nodes (s)"
    return decades_axis(title, seconds) if is_wide(seconds) else Axis(title=title, from_zero=True)


def _keys(record: SimulationRecord) -> list[Series]:
    """Return the legend: a colour for each strategy, a line for each number of nodes."""
    syncs, counts = grouped(record.trained, lambda row: row.sync), _counts(record)
    found = [Series(name=sync, colour=_colour(record, sync), width=2.2, groups=[f"sync {sync}"]) for sync in syncs]
    for nodes, many in counts.items() if len(counts) > 1 else ():
        dash = _dash(record, nodes)
        found.append(Series(name=many, colour="muted", width=2.2, dash=dash, groups=[f"nodes {nodes}"]))
    return found


def _curve(record: SimulationRecord, row: TrainedRow, values: list[float]) -> Series:
    name, seconds = training_name(row), [row.time_at(point).value for point in row.points]
    return Series(
        name=name,
        x=seconds,
        y=values,
        colour=_colour(record, row.sync),
        width=2,
        dash=_dash(record, row.number),
        told=[
            f"{name}: {value:.4g} after {duration(time_s)}, epoch {fixed(point.epoch, 2)}"
            for value, time_s, point in zip(values, seconds, row.points, strict=True)
        ],
        in_legend=False,
        groups=[f"sync {row.sync}", f"nodes {row.number}"],
    )


def _colour(record: SimulationRecord, sync: str) -> str:
    """Return the colour that the strategy has in the other figures too."""
    known = list(dict.fromkeys([*(row.sync for row in record.rows), *(row.sync for row in record.trained)]))
    return series_colour(known.index(sync))


def _counts(record: SimulationRecord) -> dict[int, str]:
    """Return how many were asked for, the fewest first, and what to call them."""
    return {row.number: row.many for row in sorted(record.trained, key=lambda row: row.number)}


def _dash(record: SimulationRecord, nodes: int) -> str:
    return DASHES[list(_counts(record)).index(nodes) % len(DASHES)]
