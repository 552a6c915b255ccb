"""Who starts the ranks. An engine is a launcher with its comm; its name is the module's name."""

from typing import TYPE_CHECKING

from manyhands.lazy import lazy

if TYPE_CHECKING:
    from manyhands.launch.base import Launcher, make, names

__all__ = ["Launcher", "make", "names"]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "base"))
