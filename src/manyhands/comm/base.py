"""The one protocol through which ranks exchange tensors."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ANY = -1
"""As `source` of a `recv`: whoever sends first."""


class Comm(ABC):
    """A group of ranks that exchange contiguous tensors; a trailing `_` marks calls that work in place.

    Every rank makes the same collective calls in the same order, with tensors of the same shape and type.
    """

    rank: int
    size: int
    features: frozenset[str] = frozenset()
    """What this comm can do beyond the collectives.

    `p2p` sends and receives, `any-source` receives from whoever sends first, `split` makes parts, and `servers` allows
    ranks beyond the workers.
    """
    clock: Callable[[], float] = time.perf_counter
    """The seconds that this rank lives by: real ones, unless the comm is a simulation."""

    @abstractmethod
    def all_reduce_(self, t: Tensor) -> None:
        """Replace `t` on every rank by the sum over the ranks."""

    @abstractmethod
    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Begin to sum `t`, which is left alone until the returned function, called once in the same order, ends it."""

    @abstractmethod
    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Replace `t` on the root by the sum over the ranks; elsewhere its content is undefined afterwards."""

    @abstractmethod
    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Replace `t` on every rank by the root's."""

    @abstractmethod
    def all_gather(self, t: Tensor) -> Tensor:
        """Return every rank's `t`, stacked in rank order."""

    @abstractmethod
    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Sum a tensor of `size` rows over the ranks and return row `rank` of the sum."""

    @abstractmethod
    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Send `t`; it may be changed as soon as the call returns."""

    @abstractmethod
    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Receive into `t` and return the rank that sent it."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def split(self, color: int) -> "Comm":
        """Return the comm of all ranks that gave this color, in the same order."""

    def add(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum of one tensor per worker, in the order in which this comm's own reductions sum."""
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total


def stack_of(t: Tensor, size: int) -> Tensor:
    """Make room for one `t` per rank."""
    return torch.empty((size, *t.shape), dtype=t.dtype, device=t.device)
