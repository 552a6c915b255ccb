"""What is exchanged between ranks, and when."""

from manyhands.sync.base import Sync, make

__all__ = ["Sync", "make"]
