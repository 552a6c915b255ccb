"""The null communicator: one rank alone, so that serial needs no special case."""

from collections import defaultdict, deque
from typing import final

from torch import Tensor

from manyhands.comm.base import ANY, Comm


@final
class SelfComm(Comm):
    """A group of one rank: sums and broadcasts leave their tensor as it is."""

    features = frozenset({"p2p", "any-source", "split"})

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._mail: dict[int, deque[Tensor]] = defaultdict(deque)

    def all_reduce_(self, t: Tensor) -> None:
        pass

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        pass

    def all_gather(self, t: Tensor) -> Tensor:
        return t.unsqueeze(0).clone()

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        assert to == 0
        self._mail[tag].append(t.clone())

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        assert source in (ANY, 0)
        assert self._mail[tag], "no other rank could send this message"
        t.copy_(self._mail[tag].popleft())
        return 0

    def barrier(self) -> None:
        pass

    def split(self, color: int) -> Comm:
        return SelfComm()
