"""Loss curves of runs, read from their files of steps, and thinned for a page."""

import json
import math
from dataclasses import dataclass
from itertools import accumulate

from manyhands.record.run import RunDir

MOST_POINTS = 300
"""Most points of one curve."""


@dataclass(frozen=True)
class LossCurve:
    """The loss over steps and over time."""

    step: list[float]
    seconds: list[float]
    loss: list[float]


def loss_curve(run: RunDir, most: int = MOST_POINTS) -> LossCurve | None:
    """Read the losses of a run, thinned to means over equally many steps; None where there are none.

    Damaged lines are left out: a run that was killed, or whose disk was full, may leave some.
    """
    try:
        lines = run.steps.read_bytes().split(b"\n")
    except OSError:
        return None
    points = [point for line in lines if (point := _point(line))]
    if not points:
        return None
    steps, losses, times_s = zip(*points, strict=True)
    seconds = list(accumulate(times_s))
    bucket = math.ceil(len(steps) / most)
    starts = range(0, len(steps), bucket)
    means = [sum(part := losses[i : i + bucket]) / len(part) for i in starts]  # fmean raises where this is infinite
    ends = [min(i + bucket, len(steps)) - 1 for i in starts]
    return LossCurve(
        [float(steps[i]) for i in ends],
        [round(seconds[i], 5) for i in ends],
        [float(f"{mean:.5g}") for mean in means],  # more digits cannot be seen
    )


def _point(line: bytes) -> tuple[int, float, float] | None:
    """Return a line's step, loss and seconds; None where it is damaged."""
    try:
        values = json.loads(line)
        step, loss, took_s = int(values["step"]), float(values["loss"]), float(values["ms"]) / 1e3
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return (step, loss, took_s) if math.isfinite(loss) and math.isfinite(took_s) else None
