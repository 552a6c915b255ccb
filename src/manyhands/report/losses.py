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
    """Read the losses of a run, the mean of some steps each where there are many; None where there are none."""
    try:
        lines = [json.loads(line) for line in run.steps.read_text(encoding="utf-8").splitlines() if line.strip()]
        steps, losses = [int(line["step"]) for line in lines], [float(line["loss"]) for line in lines]
        seconds = list(accumulate(float(line["ms"]) / 1e3 for line in lines))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not all(map(math.isfinite, (*losses, *seconds))) or not steps:
        return None
    bucket = math.ceil(len(steps) / most)
    starts = range(0, len(steps), bucket)
    means = [sum(part := losses[i : i + bucket]) / len(part) for i in starts]
    ends = [min(i + bucket, len(steps)) - 1 for i in starts]
    return LossCurve([float(steps[i]) for i in ends], [round(seconds[i], 5) for i in ends], [_short(y) for y in means])


def _short(value: float) -> float:
    """Keep five figures: more cannot be seen."""
    return float(f"{value:.5g}")
