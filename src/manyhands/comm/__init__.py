"""How bytes move between ranks."""

from manyhands.comm.base import ANY, Comm

__all__ = ["ANY", "Comm"]
