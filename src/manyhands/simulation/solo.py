"""A group of which one rank alone is followed: its calls take the time that a formula says, and move nothing."""

from collections.abc import Callable
from functools import cache
from typing import Any, final

import numpy as np
from torch import Tensor

from manyhands.comm import ANY, Comm
from manyhands.comm.base import stack_of
from manyhands.errors import UserError
from manyhands.model.links import Floats
from manyhands.model.overlap import bucket_end_s


class NoClosedForm(UserError):
    """A strategy whose ranks send messages in a way that no formula knows."""


@final
class SoloComm(Comm):
    """One rank's end of groups in which nobody else is: calls take their time, and give nothing."""

    features = frozenset({"split"})

    def __init__(self, size: int, cost_s: Callable[[str, float], Floats]) -> None:
        self.rank, self.size, self._cost_s = 0, size, cache(cost_s)  # step after step makes the same calls
        self._now_s: Any = 0.0
        self._link_free_s: Any = 0.0
        self.calls: list[tuple[str, int]] = []
        """Name and bytes of each."""
        self.before_s: list[Any] = []
        """Before each, what this rank took by itself since the one before it had ended."""
        self._since_s: Any = 0.0
        self.clock = lambda: self._now_s

    def advance(self, seconds: Any) -> None:
        """Let this rank compute for so long."""
        self._now_s = self._now_s + seconds

    def all_reduce_(self, t: Tensor) -> None:
        """Take the time."""
        self._meet("all-reduce", t.nbytes)

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        """Begin when the call before it has ended."""
        ends_s = self._begin("all-reduce", t.nbytes)
        return lambda: self._wait_until(ends_s)

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        """Take the time."""
        self._meet("reduce", t.nbytes)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        """Take the time."""
        self._meet("broadcast", t.nbytes)

    def all_gather(self, t: Tensor) -> Tensor:
        """Take the time."""
        self._meet("all-gather", t.nbytes)
        return stack_of(t, self.size)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        """Take the time."""
        self._meet("reduce-scatter", t.nbytes)
        return t[0]

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        """Refuse: when a message is taken depends on others."""
        raise NoClosedForm("its ranks send messages to each other")

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        """Refuse."""
        raise NoClosedForm("its ranks send messages to each other")

    def barrier(self) -> None:
        """Take the time."""
        self._meet("barrier", 0)

    def split(self, color: int) -> Comm:
        """Return the same: nobody else is there."""
        return self

    def _meet(self, call: str, num_bytes: int) -> None:
        self._wait_until(self._begin(call, num_bytes))

    def _begin(self, call: str, num_bytes: int) -> Any:
        self.calls.append((call, num_bytes))
        self.before_s.append(self._now_s - self._since_s)
        self._link_free_s = bucket_end_s(self._now_s, self._link_free_s, self._cost_s(call, num_bytes))
        return self._link_free_s

    def _wait_until(self, ends_s: Any) -> None:
        self._now_s = self._since_s = np.maximum(self._now_s, ends_s)
