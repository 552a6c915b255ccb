"""The other workers, as layers and losses reach them in the middle of a pass."""

from typing import final

from torch import Tensor

from manyhands.comm import Comm


@final
class Peers:
    """Sums over all workers inside a forward or backward pass; a worker is alone until it joins a comm.

    Every worker must make the same calls in the same order, one without rows included.
    """

    def __init__(self) -> None:
        self._comm: Comm | None = None
        self.counts = True
        """Whether the pass is over rows of the batch, and not over one that stands for the shape of an empty slice."""

    def join(self, comm: Comm) -> None:
        """Meet the other workers of `comm` from now on."""
        self._comm = comm

    @property
    def meeting(self) -> bool:
        """Whether this worker meets others, or is the only one of its run."""
        return self._comm is not None

    @property
    def size(self) -> int:
        """Number of workers that meet."""
        return 1 if self._comm is None else self._comm.size

    def sum_(self, t: Tensor) -> Tensor:
        """Replace `t` on every worker by its sum over the workers, and return it."""
        if self._comm is not None:
            self._comm.all_reduce_(t)
        return t

    def gather(self, t: Tensor) -> Tensor:
        """Return every worker's `t`, stacked."""
        return t.unsqueeze(0) if self._comm is None else self._comm.all_gather(t)

    def __deepcopy__(self, memo: object) -> "Peers":
        """Return peers who are alone: copies of a network are for trials on one worker."""
        return Peers()
