"""What a rank reports to its launcher while it works, and how it learns that it should stop."""

from collections.abc import Callable
from typing import Protocol

from manyhands.record.run import Pulse

Observer = Callable[[Pulse], None]
"""Is shown the run's progress."""


def ignore(pulse: Pulse) -> None:
    """Show no progress: an `Observer` for runs that nobody watches."""


class Watch(Protocol):
    """The launcher's side of a rank: learns its step and its progress, and knows whether the user wants to stop."""

    def at(self, step: int) -> None:
        """Note that this step has begun."""

    def stop_asked(self) -> bool:
        """Tell whether the user wants the run to end."""

    def pulse(self, pulse: Pulse) -> None:
        """Show the run's progress (called on rank 0 only)."""
