"""A comm with a single simulated rank: calls advance its clock by the time that a formula gives, and move no data."""

from collections.abc import Callable
from functools import cache
from typing import Any, final

import numpy as np
from torch import Tensor

from manyhands.comm import ANY, Comm
from manyhands.comm.base import stack_of
from manyhands.errors import UserError
from manyhands.model.links import Floats


class NoClosedForm(UserError):
    """A strategy whose messages between ranks no formula covers."""


@final
class SoloComm(Comm):
    """The end of one rank in a group of `size`; its clock may be an array, for several sizes at once."""

    features = frozenset({"split"})

    def __init__(self, size: int, cost_s: Callable[[str, float], Floats]) -> None:
        self.rank, self.size, self._cost_s = 0, size, cache(cost_s)  # every step makes the same calls
        self._now_s: Any = 0.0
        self._link_free_s: Any = 0.0
        self.calls: list[tuple[str, int]] = []
        """Name and bytes of each call."""
        self.before_s: list[Any] = []
        """Time of the rank's own work before each call, since the end of the previous one."""
        self._since_s: Any = 0.0
        self.clock = lambda: self._now_s

    def advance(self, seconds: Any) -> None:
        """Advance the clock by the rank's own work."""
        self._now_s = self._now_s + seconds

    def all_reduce_(self, t: Tensor) -> None:
        self._call("all-reduce", t.nbytes)

    def begin_all_reduce_(self, t: Tensor) -> Callable[[], None]:
        ends_s = self._begin("all-reduce", t.nbytes)
        return lambda: self._wait_until(ends_s)

    def reduce_(self, t: Tensor, root: int = 0) -> None:
        self._call("reduce", t.nbytes)

    def broadcast_(self, t: Tensor, root: int = 0) -> None:
        self._call("broadcast", t.nbytes)

    def all_gather(self, t: Tensor) -> Tensor:
        self._call("all-gather", t.nbytes)
        return stack_of(t, self.size)

    def reduce_scatter(self, t: Tensor) -> Tensor:
        self._call("reduce-scatter", t.nbytes)
        return t[0]

    def send(self, t: Tensor, to: int, tag: int = 0) -> None:
        raise NoClosedForm("its ranks send messages to each other")

    def recv(self, t: Tensor, source: int = ANY, tag: int = 0) -> int:
        raise NoClosedForm("its ranks send messages to each other")

    def barrier(self) -> None:
        self._call("barrier", 0)

    def split(self, color: int) -> Comm:
        return self

    def _call(self, call: str, num_bytes: int) -> None:
        self._wait_until(self._begin(call, num_bytes))

    def _begin(self, call: str, num_bytes: int) -> Any:
        """Start a call when the link is free; return when it ends."""
        self.calls.append((call, num_bytes))
        self.before_s.append(self._now_s - self._since_s)
        self._link_free_s = np.asarray(np.maximum(self._now_s, self._link_free_s) + self._cost_s(call, num_bytes))
        return self._link_free_s

    def _wait_until(self, ends_s: Any) -> None:
        self._now_s = self._since_s = np.maximum(self._now_s, ends_s)
