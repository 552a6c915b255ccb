"""Loss curves of runs, read from what they wrote at each step, and thinned to what a page can carry."""

import json
import math
from dataclasses import dataclass
from itertools import accumulate

from manyhands.record import RunDir

MOST_POINTS = 300
"""Points of one curve."""


@dataclass(frozen=True)
class LossCurve:
    """The loss over steps and over time."""

    step: list[float]
    seconds: list[float]
    loss: list[float]


def loss_curve(run: RunDir, most: int = MOST_POINTS) -> LossCurve | None:
    """Read the losses of a run, the mean of some steps each where there are many; None where there are none.

    Lines that are cut off or damaged are left out: a run that was killed, or whose disk was full, may leave some.
    """
    try:
        lines = run.steps.read_bytes().split(b"\n")
    except OSError:
        return None
    points = [point for line in lines if (point := _point(line))]
    if not points:
        return None
    steps, losses = [step for step, _, _ in points], [loss for _, loss, _ in points]
    seconds = list(accumulate(took_s for _, _, took_s in points))
    bucket = math.ceil(len(steps) / most)
    starts = range(0, len(steps), bucket)
    means = [sum(part := losses[i : i + bucket]) / len(part) for i in starts]
    ends = [min(i + bucket, len(steps)) - 1 for i in starts]
    return LossCurve([float(steps[i]) for i in ends], [round(seconds[i], 5) for i in ends], [_short(y) for y in means])


def _point(line: bytes) -> tuple[int, float, float] | None:
    """Return a line's step, loss and seconds; None where it is not whole."""
    try:
        values = json.loads(line)
        step, loss, took_s = int(values["step"]), float(values["loss"]), float(values["ms"]) / 1e3
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return (step, loss, took_s) if math.isfinite(loss) and math.isfinite(took_s) else None


def _short(value: float) -> float:
    """Keep five figures: more cannot be seen."""
    return float(f"{value:.5g}")
