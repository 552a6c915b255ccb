"""The seam between a rank at work and whoever looks after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from manyhands.record import Pulse

Observer: TypeAlias = "Callable[[Pulse], None]"
"""Who is shown the run's progress."""


def ignore(pulse: Pulse) -> None:
    """Show nothing."""


class Watch(Protocol):
    """Told where a rank is, asked whether to stop."""

    def at(self, step: int) -> None:
        """Note that this step has begun."""

    def stop_asked(self) -> bool:
        """Tell whether the user wants the run to end."""

    def pulse(self, pulse: Pulse) -> None:
        """Show how the run is doing (called on rank 0 only)."""
