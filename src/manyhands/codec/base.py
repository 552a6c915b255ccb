"""The protocol of a codec. A new one is one file in this folder; its name is the module's name.

A codec may be lossy: its caller keeps the residual `g - decode(encode(g))` and adds it to the next gradient (error
feedback; Seide et al. 2014, Karimireddy et al. 2019), so that nothing is lost over many steps.
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
    """Encodes a flat gradient in fewer bytes, and decodes it. The fields of a codec are its options."""

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
        """Prepare for flat gradients of `numel` values that begin with weights of these shapes.

        The values behind the weights have no shape. Before the first `encode`, `decode` returns values of type `dtype`.
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
        """Return the flat gradient of a code."""
        assert code.shape == (self.num_bytes(),), f"got {code.numel()} bytes where a code has {self.num_bytes()}"
        return self._decode(code)

    @abstractmethod
    def num_bytes(self) -> int:
        """Return the length of every code, given what `start` and the last `encode` were given."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold; copying into them restores the codec."""
        return {}

    def _prepare(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:  # noqa: B027
        """Make the codec's own tensors, whose size depends on the shapes."""

    @abstractmethod
    def _encode(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _decode(self, code: Tensor) -> Tensor: ...


def make(text: str) -> Codec:
    """Make a codec from its spec string, such as `topk:ratio=0.05`."""
    name, options = spec.parse(text)
    return spec.build(_find(name), options, f"codec '{name}'")


def describe() -> list[spec.Option]:
    """Return the options of every codec; the help of each begins with the codec's name."""
    return [
        option._replace(help=f"With codec={name}: {option.help}")
        for name in names()
        for option in spec.describe(_find(name))
    ]


def _find(name: str) -> type[Codec]:
    return registry.find(sys.modules[__package__], Codec, name, "codec")  # type: ignore[type-abstract]


def names() -> list[str]:
    """Return the names of all codecs."""
    return registry.names(sys.modules[__package__], Codec)


def as_bytes(t: Tensor) -> Tensor:
    """Return the bytes of `t`, a view if it is contiguous."""
    return t.contiguous().view(-1).view(torch.uint8)


def from_bytes(code: Tensor, dtype: torch.dtype) -> Tensor:
    """View bytes as values; they are copied if misaligned, as a row of gathered codes of odd length may be."""
    return (code.clone() if code.storage_offset() % dtype.itemsize else code).view(dtype)
