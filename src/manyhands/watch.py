"""The seam between a rank at work and whoever looks after it."""

from typing import Protocol

from manyhands.record import Pulse


class Watch(Protocol):
    """Told where a rank is, asked whether to stop."""

    def at(self, step: int) -> None:
        """Note that this step has begun."""

    def stop_asked(self) -> bool:
        """Tell whether the user wants the run to end."""

    def pulse(self, pulse: Pulse) -> None:
        """Show how the run is doing (called on rank 0 only)."""
