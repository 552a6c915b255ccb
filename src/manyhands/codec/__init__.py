"""How a gradient is made smaller before it travels. A codec's name is the module's name."""

from manyhands.codec.base import Codec, make, names

__all__ = ["Codec", "make", "names"]
