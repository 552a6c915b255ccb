"""The null communicator: one rank alone, so that serial needs no special case."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import final

from torch import Tensor

from manyhands.comm.base import ANY, Comm


@final
class SelfComm(Comm):
    """A group of one."""

    features = frozenset({"p2p", "any-source", "split"})

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._mail: dict[int, deque[Tensor]] = defaultdict(deque)

    def all_reduce_(self, t: Tensor) -> None:
        """Leave `t` as it is."""

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Leave `t` as it is."""
        return lambda: None

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Leave `t` as it is."""

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Leave `t` as it is."""

    def all_gather(self, t: Tensor) -> Tensor:
        """Return a stack of one."""
        return t.unsqueeze(0).clone()

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Return the only row."""
        return t[0].clone()

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Keep a copy until it is received."""
        assert to == 0
        self._mail[tag].append(t.clone())

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Take the oldest copy sent with this tag."""
        assert source in (ANY, 0)
        assert self._mail[tag], "nobody is left to send this"
        t.copy_(self._mail[tag].popleft())
        return 0

    def barrier(self) -> None:
        """Return at once."""

    def split(self, color: int) -> Comm:
        """Return another group of one."""
        return SelfComm()
