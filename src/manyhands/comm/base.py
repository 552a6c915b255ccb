"""The one protocol through which ranks exchange tensors."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

ANY = -1
"""As `source` of a `recv`: whichever rank sends first."""


class Comm(ABC):
    """A group of ranks that exchange contiguous tensors; a trailing `_` marks calls that work in place.

    Every rank makes the same collective calls in the same order, with tensors of the same shape and type.
    """

    rank: int
    size: int
    features: frozenset[str] = frozenset()
    """What this comm can do beyond the collectives.

    `p2p` sends and receives, `any-source` receives from whichever rank sends first, `split` makes sub-groups, and
    `servers` allows ranks beyond the workers.
    """
    meets_in_passes: bool = True
    """Whether ranks can make calls inside autograd's backward pass."""
    clock: Callable[[], float] = time.perf_counter
    """Returns the time in seconds: real time, unless the ranks are simulated."""

    @abstractmethod
    def all_reduce_(self, t: Tensor) -> None:
        """Replace `t` on every rank by the sum over the ranks."""

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Begin to sum `t` and return the function that ends it; in between, the caller must not touch `t`.

        Every rank ends its sums once each, in the order in which they began. Where nothing can run in the background,
        the whole sum is done at the end.
        """
        return lambda: self.all_reduce_(t)

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Replace `t` on the root by the sum over the ranks; elsewhere its content is undefined afterwards."""
        self.all_reduce_(t)

    @abstractmethod
    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Replace `t` on every rank by the root's."""

    @abstractmethod
    def all_gather(self, t: Tensor) -> Tensor:
        """Return every rank's `t`, stacked in rank order."""

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Sum a tensor of `size` rows over the ranks and return row `rank` of the sum."""
        total = t.clone()
        self.all_reduce_(total)
        return total[self.rank]

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

    def add(self, parts: Iterable[Tensor]) -> Tensor:
        """Return the sum of one tensor per worker, added in the order of this comm's own reductions."""
        remaining = iter(parts)
        total = next(remaining).clone()
        for part in remaining:
            total += part
        return total


def stack_of(t: Tensor, size: int) -> Tensor:
    """Return an uninitialised tensor with room for `size` tensors like `t`."""
    return torch.empty((size, *t.shape), dtype=t.dtype, device=t.device)
