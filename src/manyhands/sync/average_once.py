"""Average once: each worker trains alone on its split of the data; the weights are averaged at the end (paper 004)."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.sync.base import AveragedSync


@final
@dataclass(kw_only=True, slots=True)
class AverageOnce(AveragedSync):
    """Train alone from shared initial weights, each worker on its own split, and average at the very end."""

    own_split: ClassVar[bool] = True
    exchanges: ClassVar = "end"
    pattern: ClassVar = "mean"
