"""What `manyhands simulate --train` prints: how far each strategy got on so many nodes, and in what time."""

from collections.abc import Callable, Iterator

from manyhands.record.simulation import SimulationRecord, TrainedRow
from manyhands.record.texts import NOTHING, duration, figure, fixed, percent, plain, with_bounds
from manyhands.record.virtual import Method

Column = tuple[str, Callable[[TrainedRow], str]]

HOW: dict[Method, str] = {
    "one-worker": "one worker on the whole batches, whose answer is that of many",
    "stacked": "all replicas, batched",
    "one-by-one": "all replicas, one by one",
}


LATER = ("computed", "staleness", "lr", "batch", "epochs", "test loss")
"""Columns that a narrow terminal leaves out, the first of them first."""
SETTINGS: list[Column] = [
    ("epochs", lambda row: plain(row.epochs)),
    ("batch", lambda row: f"{row.batch_size:,}"),
    ("lr", lambda row: f"{row.lr:g}"),
]


def trained_title(record: SimulationRecord) -> str:
    """Say above the table what is the same for all rows: `trained: epochs 2, batch 64, lr 0.01`."""
    same = [f"{name} {text(record.trained[0])}" for name, text in SETTINGS if not _differs(record, text)]
    return f"trained: {', '.join(same)}" if same else "trained"


def trained_columns(record: SimulationRecord) -> list[Column]:
    """Return the columns of the table of trainings, with those that have something to say."""
    columns: list[Column] = [
        (record.by, lambda row: f"{row.number:,}"),
        ("sync", lambda row: row.sync),
        *((name, text) for name, text in SETTINGS if _differs(record, text)),
        ("accuracy", lambda row: _accuracy(row.test_accuracy)),
        ("test loss", lambda row: fixed(row.test_loss, 4)),
        ("time", lambda row: with_bounds(row.time_s, duration)),
    ]
    if record.target_accuracy is not None:
        columns.append((f"to {goal(record)}", _reached))
    if any(row.target_cost for row in record.trained):
        columns.append((record.currency, lambda row: _cost(row)))
    if any(row.staleness for row in record.trained):
        columns.append(("staleness", _staleness))
    return [*columns, ("computed", lambda row: row.method)]


def _differs(record: SimulationRecord, text: Callable[[TrainedRow], str]) -> bool:
    return len({text(row) for row in record.trained}) > 1


def goal(record: SimulationRecord) -> str:
    """Write the accuracy that was asked for."""
    return f"{100 * (record.target_accuracy or 0):g} %"


def trained_sentences(record: SimulationRecord) -> Iterator[str]:
    """Say how it was computed, what the times are, and who was first."""
    for method in HOW:
        if any(row.method == method for row in record.trained):
            yield f"{method}: {HOW[method]}"
    if record.target_accuracy is not None:
        yield f"times to {goal(record)} are those of the first evaluation that shows it; evaluations take no time"
    for name, why in record.failed.items():
        yield f"{name} failed: {why}"
    there = [row for row in record.trained if row.target_s is not None]
    if there:
        first = min(there, key=lambda row: row.target_s.value if row.target_s else 0.0)
        yield f"{goal(record)} is reached first by {first.sync} on {first.many}: {_reached(first)}"
    elif record.target_accuracy is not None and record.trained:
        best = max(max(point.accuracy for point in row.points) for row in record.trained)
        yield f"{goal(record)} is reached by none; the best is {_accuracy(best)}: try more --epochs or another --lr"


def _reached(row: TrainedRow) -> str:
    return "not reached" if row.target_s is None else with_bounds(row.target_s, duration)


def _accuracy(share: float) -> str:
    return percent(100 * share, 2)


def _cost(row: TrainedRow) -> str:
    return with_bounds(row.target_cost, figure) if row.target_cost else NOTHING


def _staleness(row: TrainedRow) -> str:
    """Write how old gradients were: on average, and at the most."""
    return f"{row.staleness['mean']:.1f}, max {row.staleness['max']:.0f}" if row.staleness else NOTHING
