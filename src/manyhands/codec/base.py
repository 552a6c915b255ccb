"""The protocol of a codec. A new one is one file in this folder; its name is the module's name.

A codec may lose what it likes: whoever uses it keeps the residual `g - decode(encode(g))` and adds it to the next
gradient (error feedback; Seide et al. 2014, Karimireddy et al. 2019), so that nothing is lost over many steps.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from manyhands import registry, spec


@dataclass(kw_only=True, slots=True)
class Codec(ABC):
    """Turns a flat gradient into fewer bytes and back. The fields of a codec are its options."""

    _numel: int = field(init=False, repr=False, default=-1)
    _dtype: torch.dtype = field(init=False, repr=False, default=torch.float32)

    def start(
        self,
        shapes: Sequence[tuple[int, ...]],
        numel: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Make ready for flat gradients of `numel` values that begin with weights of these shapes.

        The values behind the weights are loose. `dtype` is what `decode` gives as long as nothing was encoded here.
        """
        assert sum(map(prod, shapes)) <= numel, "the weights are part of the gradient"
        self._numel, self._dtype = numel, dtype
        self._prepare(shapes, torch.device(device))

    def encode(self, t: Tensor) -> Tensor:
        """Return the code of a flat gradient: `num_bytes()` bytes, on the gradient's device."""
        assert t.shape == (self._numel,), f"got a gradient of shape {tuple(t.shape)} after start with {self._numel}"
        self._dtype = t.dtype
        return self._encode(t)

    def decode(self, code: Tensor) -> Tensor:
        """Return the flat gradient that a code stands for."""
        assert code.shape == (self.num_bytes(),), f"got {code.numel()} bytes where a code has {self.num_bytes()}"
        return self._decode(code)

    @abstractmethod
    def num_bytes(self) -> int:
        """Return the length of every code, given what `start` and `encode` were told."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed run must find again; copying into them restores it."""
        return {}

    def _prepare(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:  # noqa: B027
        """Make what depends on the shapes."""

    @abstractmethod
    def _encode(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _decode(self, code: Tensor) -> Tensor: ...


def make(text: str) -> Codec:
    """Make a codec from its spec string, such as `topk:ratio=0.05`."""
    name, options = spec.parse(text)
    return spec.build(_find(name), options, f"codec '{name}'")


def describe() -> list[spec.Option]:
    """List the options of every codec; the help of each begins with the codec's name."""
    return [
        option._replace(help=f"With codec={name}: {option.help}")
        for name in names()
        for option in spec.describe(_find(name))
    ]


def _find(name: str) -> type[Codec]:
    return registry.find(sys.modules[__package__], Codec, name, "codec")  # type: ignore[type-abstract]


def names() -> list[str]:
    """List the codecs."""
    return registry.names(sys.modules[__package__], Codec)


def as_bytes(t: Tensor) -> Tensor:
    """View values as bytes."""
    return t.contiguous().view(-1).view(torch.uint8)


def from_bytes(code: Tensor, dtype: torch.dtype) -> Tensor:
    """View bytes as values; they are copied where they lie askew, as a row of gathered codes of odd length may."""
    return (code.clone() if code.storage_offset() % dtype.itemsize else code).view(dtype)
