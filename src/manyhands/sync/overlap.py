"""Overlap: buckets of gradients are summed while the backward pass still computes the others (Li et al. 2020)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.errors import check
from manyhands.replica import Replica
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class Overlap(Sync):
    """Begin to sum each bucket of gradients as soon as it is final, last layers first."""

    exact: ClassVar[bool] = True
    listens: ClassVar[bool] = True

    bucket: int = 65536
    """Values in a bucket."""
    _ends: list[Callable[[], None]] = field(init=False, repr=False, default_factory=list)
    _final: int = field(init=False, repr=False, default=0)
    _islands: dict[int, int] = field(init=False, repr=False, default_factory=dict)
    """Start of each final span, by its stop, between which and the end of the gradients some are not final yet."""

    def __post_init__(self) -> None:
        check(self.bucket >= 1, f"bucket of overlap must be at least 1, got {self.bucket}")

    def start(self, replica: Replica, comm: Comm) -> None:
        comm.broadcast_(replica.params)
        self._final = replica.grads.numel()

        def ready(start: int, stop: int) -> None:
            self._islands[stop] = start
            while self._final in self._islands:
                self._final = self._islands.pop(self._final)
            self._begin(replica, comm, self._final)

        replica.on_grad_ready(ready)

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Begin the buckets that were not announced, wait for all, and apply."""
        self._begin(replica, comm, 0)
        for end in self._ends:
            end()
        self._ends.clear()
        self._islands.clear()
        self._final = replica.grads.numel()
        replica.apply()

    def _begin(self, replica: Replica, comm: Comm, final: int) -> None:
        """Begin every bucket that starts at `final` or later: the same ones in the same order on every rank."""
        total = replica.grads.numel()
        while (stop := total - len(self._ends) * self.bucket) > 0 and max(0, stop - self.bucket) >= final:
            self._ends.append(comm.begin_all_reduce_(replica.grads[max(0, stop - self.bucket) : stop]))
