"""The cost of one message: α + nβ (Hockney 1994), with the part of α that occupies a port (LogP, Culler et al. 1993).

γ, the seconds to add one byte in a reduction, is a property of the cores, not of the link, and is passed separately.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bytes = TypeVar("Bytes", float, Floats)


@dataclass(frozen=True)
class Link:
    """A link between two ranks; each end is a port, which carries one message at a time in each direction."""

    alpha_s: float
    """Latency: time of an empty message."""
    beta_s_per_byte: float
    """Inverse bandwidth."""
    overhead_s: float = 0.0
    """Part of `alpha_s` that occupies the ports; the rest overlaps with other messages."""
    full_duplex: bool = True
    """Whether a port sends and receives at the same time; if not, it is occupied until a message has arrived."""

    def __post_init__(self) -> None:
        assert 0 <= self.overhead_s <= self.alpha_s
        assert self.beta_s_per_byte >= 0

    @property
    def turns(self) -> int:
        """Messages that pass one after the other when two ranks send to each other at the same time."""
        return 1 if self.full_duplex else 2

    def message_s(self, num_bytes: Bytes) -> Bytes:
        """Return the time of a message, from when both ranks are ready until it has arrived."""
        return self.alpha_s + num_bytes * self.beta_s_per_byte

    def busy_s(self, num_bytes: Bytes) -> Bytes:
        """Return the time for which a message occupies its ports."""
        return (self.overhead_s if self.full_duplex else self.alpha_s) + num_bytes * self.beta_s_per_byte
