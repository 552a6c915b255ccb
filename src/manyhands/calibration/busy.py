"""Tell whether other programs used the cores during a calibration."""

import statistics
from collections.abc import Callable

from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import Calibration

BUSY_PER_S = 30.0
"""Interruptions of a worker per second above which a calibration is doubtful: on a busy core there are 300."""
HINT = "so that times are too long and vary too much; calibrate again while the machine is quiet"


def say_if_busy(calibration: Calibration, say: Callable[[str], None]) -> None:
    """Call `say` with a sentence if other programs used the cores, or often interrupted steps that wait for nobody."""
    others = calibration.others
    if others is not None and others.disturbed:
        say(f"{others} during the calibration, {HINT}")
        return
    points = [point for costs in calibration.tasks.values() for point in costs.points]
    points += [crowd.silent for crowd in calibration.contention if crowd.engine != "threads"]  # who wait for a lock
    per_s = statistics.median(0.01 * point.disturbed_pct / (1e-3 * undisturbed(point.compute_ms)) for point in points)
    if per_s > BUSY_PER_S:
        say(f"other programs took a worker's core about {per_s:.0f} times a second, {HINT}")
