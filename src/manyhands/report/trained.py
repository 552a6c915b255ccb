"""What was trained as many nodes would: the time to some accuracies, and what was learned."""

from manyhands.record.simulation import Estimate, SimulationRecord, TrainedRow
from manyhands.record.texts import duration, percent
from manyhands.report.trained_figures import training_name

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
"""Accuracies of which the time is told where none was asked for."""
MOST_LEVELS = 3


def time_to(row: TrainedRow, accuracy: float) -> Estimate | None:
    """Return the nodes' seconds to the first evaluation that shows at least this accuracy, with failures."""
    return next((row.time_at(point) for point in row.points if point.accuracy >= accuracy), None)


def levels(record: SimulationRecord) -> list[float]:
    """Return the highest accuracies that one of the trainings reaches, and the one that was asked for."""
    reached = [level for level in LEVELS if any(time_to(row, level) is not None for row in record.trained)]
    asked = [record.target_accuracy] if record.target_accuracy is not None else []
    return sorted({*reached[-MOST_LEVELS:], *asked})


def level_name(accuracy: float | None) -> str:
    """Write an accuracy as people do: 97.5 %."""
    return f"{100 * (accuracy or 0):.4g} %"


def trained_sentence(record: SimulationRecord) -> str:
    """Say which training reaches the accuracy asked for first, or the highest that one reaches; empty without any."""
    if not record.trained:
        return ""
    target = record.target_accuracy or max(levels(record), default=None)
    best = max(record.trained, key=lambda row: row.test_accuracy)
    ends = f"{training_name(best)}, ends at {percent(100 * best.test_accuracy, 2)}"
    if target is None:
        return f"The best training, {ends}."
    times = [(time_s.value, row) for row in record.trained if (time_s := time_to(row, target))]
    if not times:
        return f"No training reaches {level_name(target)} accuracy; the best, {ends}."
    seconds, first = min(times, key=lambda each: each[0])
    return f"{level_name(target)} accuracy is first reached by {training_name(first)}, after {duration(seconds)}."
