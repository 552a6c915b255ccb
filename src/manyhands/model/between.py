"""Uncertainty of a GPU's steps between measured numbers of rows, and between processes.

A GPU's step has a knee: with few rows the host hands over its work more slowly than it is done, with many the GPU is
the limit. A line between two measured points cuts the knee's corner.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import Calibration, RowTimes

PROCESSES = 0.02
"""Relative standard deviation between processes, whose hosts hand over work faster or more slowly for as long as they
live; a calibration has one process, and cannot measure it."""
CORNER = 0.25
"""Error of a line between two neighbours, as a share of that between every other: it grows with the square of the
distance."""


def gpu_spread(calibration: Calibration, task: str, rows: float) -> float:
    """Return the relative standard deviation of a GPU's step with `rows` rows beyond that between runs; 0 on CPUs."""
    if calibration.device == "cpu":
        return 0.0
    return math.hypot(PROCESSES, _corner(calibration.tasks[task].points, rows))


def _corner(points: Sequence[RowTimes], rows: float) -> float:
    """Return the relative error of the line at `rows`, judged by how badly lines between every other point meet the
    nearest measured ones."""
    if len(points) < 3 or rows in [point.rows for point in points]:
        return 0.0
    steps = {point.rows: _step_ms(point) for point in points}
    sizes, errors = list(steps), [0.0]
    near = next((pair for pair in pairwise(sizes) if pair[0] <= rows <= pair[1]), (sizes[-2], sizes[-1]))
    for middle in near:
        i = sizes.index(middle)
        low, high = sizes[max(0, i - 1)], sizes[min(i + 1, len(sizes) - 1)]
        if min(middle - low, high - middle) > 1:  # one row further there is a jump, of a further micro-batch
            line = steps[low] + (middle - low) / (high - low) * (steps[high] - steps[low])
            errors.append(abs(line / steps[middle] - 1))
    return CORNER * max(errors)


def _step_ms(point: RowTimes) -> float:
    whole = [a + b for a, b in zip(point.compute_ms, point.serial_ms, strict=True)]
    return max(1e-9, undisturbed(whole))
