"""Tell whether other programs used the cores during a calibration."""

import statistics
from collections.abc import Callable

from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import Calibration

BUSY_PER_S = 30.0
"""How often a second other programs may take a worker's core without this being said: a busy one loses it 300 times."""


def say_if_busy(calibration: Calibration, say: Callable[[str], None]) -> None:
    """Say that other programs used the cores while all was measured, or disturbed steps that wait for nobody often."""
    if calibration.others is not None and calibration.others.disturbed:
        say(
            f"{calibration.others} during the calibration, so that times are too long and vary too much; "
            "calibrate again while the machine is quiet"
        )
        return
    points = [point for costs in calibration.tasks.values() for point in costs.points]
    points += [each.silent for each in calibration.contention if each.engine != "threads"]  # who wait for a lock
    per_s = statistics.median(0.01 * each.disturbed_pct / (1e-3 * undisturbed(each.compute_ms)) for each in points)
    if per_s > BUSY_PER_S:
        say(
            f"other programs took a worker's core about {per_s:.0f} times a second, so that times are too long "
            "and vary too much; calibrate again while the machine is quiet"
        )
