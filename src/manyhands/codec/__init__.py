"""How a gradient is compressed before it is sent. A codec's name is the module's name."""

from manyhands.codec.base import Codec, describe, make, names

__all__ = ["Codec", "describe", "make", "names"]
