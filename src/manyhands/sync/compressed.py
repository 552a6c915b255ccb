"""Compressed gradients with error feedback: the error of a code is added to the next (Karimireddy et al. 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self, final

from torch import Tensor

from manyhands import codec as codecs
from manyhands.codec import Codec
from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.spec import Option
from manyhands.sync.base import Sync

DEFAULT = "fp16"


@final
@dataclass(kw_only=True, slots=True)
class Compressed(Sync):
    """Exchange short codes of the gradients; every rank decodes and sums them all."""

    exact: ClassVar[bool] = False

    codec: Codec
    _residual: Tensor = field(init=False, repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, str], owner: str) -> Self:
        """Make the codec that the option `codec` names, with all other options."""
        others = ",".join(f"{name}={text}" for name, text in options.items() if name != "codec")
        return cls(codec=codecs.make(f"{options.get('codec', DEFAULT)}:{others}"))

    @classmethod
    def describe_options(cls) -> list[Option]:
        choices = f"How gradients are compressed: one of {', '.join(codecs.names())}."
        return [Option("codec", "a text", DEFAULT, choices), *codecs.describe()]

    def start(self, replica: Replica, comm: Comm) -> None:
        comm.broadcast_(replica.params)
        self._residual = replica.grads.new_zeros(replica.grads.shape)
        params = replica.params
        self.codec.start(replica.shapes(), params.numel(), dtype=params.dtype, device=params.device)

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Encode gradient plus residual, keep the error of the code as residual, and apply the sum of all codes."""
        self._residual += replica.grads
        code = self.codec.encode(self._residual)
        self._residual -= self.codec.decode(code)
        replica.grads.copy_(comm.add(map(self.codec.decode, comm.all_gather(code))))
        replica.apply()

    def tensors(self) -> dict[str, Tensor]:
        return {"residual": self._residual, **self.codec.state()}
