"""What was trained as many nodes would: loss and accuracy against their time, and the time to some accuracies."""

from collections.abc import Callable, Sequence

from manyhands.record.simulation import Estimate, SimulationRecord, TrainedRow
from manyhands.record.texts import NOTHING, duration, figure, fixed, percent, plain, with_bounds
from manyhands.report.drawing import Figure, Layout, Trace, View, decades_axis, is_wide, key, layout, safe
from manyhands.report.palette import DASHES, series_colour
from manyhands.report.scores import grouped
from manyhands.report.tables import Grid

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
"""Accuracies of which the time is told where none was asked for."""
MOST_LEVELS = 3

Column = tuple[str, Callable[[TrainedRow], str]]


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
            {"title": "test accuracy", "ticksuffix": " %"},
        ),
        _figure(
            record,
            "loss",
            "Loss",
            "Loss on the training data, mean since the evaluation before. Over epochs, strategies that keep one "
            "worker's answer lie over each other.",
            [[float(f"{point.loss:.5g}") for point in row.points] for row in record.trained],
            {"title": "training loss"},
        ),
    ]


def _figure(
    record: SimulationRecord, name: str, title: str, about: str, values: Sequence[list[float]], axis: Layout
) -> Figure:
    data = [*_keys(record), *(_curve(record, row, own) for row, own in zip(record.trained, values, strict=True))]
    none = [[None]] * (len(data) - len(values))
    times = [_seconds(row) for row in record.trained]
    epochs = [[round(point.epoch, 4) for point in row.points] for row in record.trained]
    by_time = layout(_time_axis([time for own in times for time in own]), {})["xaxis"]
    by_epoch = layout({"title": "epochs", "type": "linear"}, {})["xaxis"]
    ends = "; ".join(
        f"{_name(row)} ends at {own[-1]:.4g}" for row, own in zip(record.trained, values, strict=True) if own
    )
    return Figure(
        id=f"trained-{name}",
        title=title,
        about=about,
        says=f"{title} of simulated trainings. {ends}.",
        data=data,
        layout=layout({"title": "virtual time (s)"}, axis),
        choose="Over",
        views=[
            View("time", {"x": [*none, *times]}, {"xaxis": by_time}),
            View("epochs", {"x": [*none, *epochs]}, {"xaxis": by_epoch}),
        ],
    )


def _time_axis(seconds: Sequence[float]) -> Layout:
    title = "time on the simulated nodes (s)"
    if is_wide(seconds):
        return decades_axis(title, seconds)
    return {"title": title, "type": "linear", "rangemode": "tozero"}


def _keys(record: SimulationRecord) -> list[Trace]:
    """Return the legend: a colour for each strategy, a line for each number of nodes."""
    found = []
    for sync in grouped(record.trained, lambda row: row.sync):
        line = {"color": _colour(record, sync), "width": 2.2}
        found.append(key(sync, f"sync {sync}", {}, mode="lines", line=line))
    counts = _counts(record)
    for nodes, many in counts.items() if len(counts) > 1 else ():
        line = {"color": "@muted", "width": 2.2, "dash": _dash(record, nodes)}
        found.append(key(many, f"nodes {nodes}", {}, mode="lines", line=line))
    return found


def _curve(record: SimulationRecord, row: TrainedRow, values: list[float]) -> Trace:
    name = safe(_name(row))
    times = [duration(seconds) for seconds in _seconds(row)]
    epochs = [fixed(point.epoch, 2) for point in row.points]
    return {
        "type": "scatter",
        "mode": "lines" if len(values) > 1 else "markers",
        "name": name,
        "showlegend": False,
        "meta": {"groups": [safe(f"sync {row.sync}"), f"nodes {row.number}"]},
        "x": _seconds(row),
        "y": values,
        "line": {"color": _colour(record, row.sync), "width": 2, "dash": _dash(record, row.number)},
        "marker": {"color": _colour(record, row.sync), "size": 8},
        "customdata": [list(pair) for pair in zip(times, epochs, strict=True)],
        "hovertemplate": f"{name}: %{{y:.4~g}} after %{{customdata[0]}}, epoch %{{customdata[1]}}<extra></extra>",
    }


def _name(row: TrainedRow) -> str:
    return f"{row.sync} on {row.many}"


def _colour(record: SimulationRecord, sync: str) -> str:
    """Return the colour that the strategy has in the other figures too."""
    known = list(dict.fromkeys([*(row.sync for row in record.rows), *(row.sync for row in record.trained)]))
    return series_colour(known.index(sync))


def _counts(record: SimulationRecord) -> dict[int, str]:
    """Return how many were asked for, the fewest first, and what to call them."""
    return {row.number: row.many for row in sorted(record.trained, key=lambda row: row.number)}


def _dash(record: SimulationRecord, nodes: int) -> str:
    return DASHES[list(_counts(record)).index(nodes) % len(DASHES)]


def _seconds(row: TrainedRow) -> list[float]:
    return [row.time_at(point).value for point in row.points]


def time_to(row: TrainedRow, accuracy: float) -> Estimate | None:
    """Return the nodes' seconds to the first evaluation that shows at least this accuracy, with failures."""
    return next((row.time_at(point) for point in row.points if point.accuracy >= accuracy), None)


def levels(record: SimulationRecord) -> list[float]:
    """Return the highest accuracies that one of the trainings reaches, and the one that was asked for."""
    reached = [level for level in LEVELS if any(time_to(row, level) is not None for row in record.trained)]
    asked = [record.target_accuracy] if record.target_accuracy is not None else []
    return sorted({*reached[-MOST_LEVELS:], *asked})


def time_table(record: SimulationRecord) -> Grid:
    """Make the table of the time to some accuracies."""
    columns: list[Column] = [
        ("sync", lambda row: row.sync),
        (record.by, lambda row: f"{row.number:,}"),
        *((f"to {_level(level)}", _time_to(record, level)) for level in levels(record)),
        *([(f"{record.currency} to {_level(record.target_accuracy)}", _target_cost)] if _is_priced(record) else []),
        ("all epochs", lambda row: with_bounds(row.time_s, duration)),
        ("accuracy", _accuracy),
    ]
    return _grid(record, columns)


def learned_table(record: SimulationRecord) -> Grid:
    """Make the table of how the trainings were done, and what came out."""
    columns: list[Column] = [
        ("sync", lambda row: row.sync),
        (record.by, lambda row: f"{row.number:,}"),
        ("batch", lambda row: f"{row.batch_size:,}"),
        ("learning rate", lambda row: plain(row.lr)),
        ("epochs", lambda row: plain(row.epochs)),
        ("steps", lambda row: f"{row.steps:,}"),
        ("test loss", lambda row: fixed(row.test_loss, 4)),
        ("accuracy", _accuracy),
        ("weights", lambda row: row.weights_sha256[:12]),
        ("took here", lambda row: duration(row.wall_s)),
    ]
    return _grid(record, columns)


def _accuracy(row: TrainedRow) -> str:
    return percent(100 * row.test_accuracy, 2)


def _grid(record: SimulationRecord, columns: Sequence[Column]) -> Grid:
    return Grid([heading for heading, _ in columns], [[text(row) for _, text in columns] for row in record.trained])


def _time_to(record: SimulationRecord, level: float) -> Callable[[TrainedRow], str]:
    """Write the time; with its bounds only where it was asked for, or a page would be too wide to print."""

    def text(row: TrainedRow) -> str:
        time_s = time_to(row, level)
        if time_s is None:
            return NOTHING
        return with_bounds(time_s, duration) if level == record.target_accuracy else duration(time_s.value)

    return text


def _is_priced(record: SimulationRecord) -> bool:
    return any(row.target_cost for row in record.trained)


def _target_cost(row: TrainedRow) -> str:
    return with_bounds(row.target_cost, figure) if row.target_cost else NOTHING


def _level(accuracy: float | None) -> str:
    return f"{100 * (accuracy or 0):.4g} %"


def trained_sentence(record: SimulationRecord) -> str:
    """Say which training reaches the accuracy asked for first, or the highest that one reaches; empty without any."""
    if not record.trained:
        return ""
    target = record.target_accuracy or max(levels(record), default=None)
    best = max(record.trained, key=lambda row: row.test_accuracy)
    ends = f"{_name(best)}, ends at {percent(100 * best.test_accuracy, 2)}"
    if target is None:
        return f"The best training, {ends}."
    times = [(time_s.value, row) for row in record.trained if (time_s := time_to(row, target))]
    if not times:
        return f"No training reaches {_level(target)} accuracy; the best, {ends}."
    seconds, first = min(times, key=lambda each: each[0])
    return f"{_level(target)} accuracy is first reached by {_name(first)}, after {duration(seconds)}."
