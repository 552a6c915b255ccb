"""The learning rate of a run: scaled with the batch, warmed up, decayed (Goyal et al. 2017)."""

import math
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Literal, final

from manyhands.config import RunConfig
from manyhands.errors import check, unknown

LR_SCALING = ("none", "linear", "sqrt")


@final
@dataclass(frozen=True)
class Schedule:
    """The share of the full learning rate that each step gets."""

    steps: int
    """Steps of the run."""
    warmup_steps: float
    """Steps in which the rate rises to the full one, in a straight line."""
    decay: Literal["none", "linear", "cosine"]
    """How it falls from there to the end of the run."""
    seen: list[float] = field(default_factory=list, compare=False)
    """The monitored figure of each evaluation so far, which a task's own scheduler may look at."""

    def saw(self, value: float) -> None:
        """Note the monitored figure of an evaluation; every worker notes the same."""
        self.seen.append(value)

    def scale(self, step: int) -> float:
        """Return the factor of the learning rate in `step`, more than 0 and at most 1."""
        if step + 1 < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.decay == "none":
            return 1.0
        done = min(1.0, max(0.0, step - self.warmup_steps) / max(1.0, self.steps - self.warmup_steps))
        return 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2


def scale_lr(config: RunConfig, scaling: str, usual_batch: int | str, given: Container[str]) -> RunConfig:
    """Return `config` with its learning rate, which suits batches of `usual_batch`, scaled to its own batch size.

    A rate that grew needs warm-up and decay to keep one worker's accuracy (benchmarks/large_batch), so it gets those of
    them that are not among the settings `given`.
    """
    if scaling not in LR_SCALING:
        unknown("lr-scaling", scaling, LR_SCALING)
    if scaling == "none":
        return config
    check(
        isinstance(config.batch_size, int) and isinstance(usual_batch, int),
        f"lr-scaling {scaling} needs a batch size that is a number, not 'full'",
    )
    ratio = int(config.batch_size) / int(usual_batch)
    factor = ratio if scaling == "linear" else math.sqrt(ratio)
    eased = {"warmup": min(1.0, config.epochs / 5), "lr_decay": "linear"} if factor > 1 else {}
    eased = {key: value for key, value in eased.items() if key not in given}
    return config.model_copy(update={"lr": config.lr * factor, **eased})
