"""Who starts the ranks. An engine is a launcher with its comm; its name is the module's name."""

from manyhands.launch.base import Launcher, make, names

__all__ = ["Launcher", "make", "names"]
