"""Compressed gradients with error feedback: what a code leaves out goes into the next (Karimireddy et al. 2019)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from torch import Tensor

from manyhands.codec.base import Codec, make
from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class Compressed(Sync):
    """Exchange short codes of the gradients; every rank decodes and sums them all."""

    exact: ClassVar[bool] = False

    codec: str = "fp16"
    """How gradients are shortened: fp16, int8, topk or powersgd."""
    ratio: float = 0.0
    """Share of the values that topk sends; 0 for its own default."""
    rank: int = 0
    """Rank of the matrices that powersgd sends; 0 for its own default."""
    _code: Codec = field(init=False, repr=False)
    _residual: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = [f"{name}={value}" for name, value in (("ratio", self.ratio), ("rank", self.rank)) if value]
        self._code = make(f"{self.codec}:{','.join(given)}")

    def start(self, replica: Replica, comm: Comm) -> None:
        """Agree on the weights; nothing is left out yet."""
        comm.broadcast_(replica.params)
        self._residual = replica.grads.new_zeros(replica.grads.shape)
        params = replica.params
        self._code.start(replica.shapes(), params.numel(), dtype=params.dtype, device=params.device)

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Encode gradient and residual, keep what the code leaves out, and apply the sum of all codes."""
        self._residual += replica.grads
        code = self._code.encode(self._residual)
        self._residual -= self._code.decode(code)
        replica.grads.copy_(comm.add([self._code.decode(c) for c in comm.all_gather(code)]))
        replica.apply()

    def tensors(self) -> dict[str, Tensor]:
        """Keep the residual, and what the codec goes on from."""
        return {"residual": self._residual, **self._code.state()}
