"""Where a step's time goes: computing, communication or waiting, on every rank.

A few times a second the ranks flush their meters: one small gather carries the losses of the steps since the last
flush, the durations of their calls, and whether a rank wants to stop, so that the steps in between cost nothing extra.
The shortest duration of a collective call over the ranks counts as communication; the rest of a rank's duration is
waiting. All messages that a step sends and receives point to point count as one call. The rank whose calls of a step
were the shortest was the last to arrive: the others waited for it.
"""

import math
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.comm.exact import join, subtrees
from manyhands.comm.traced import TracedComm
from manyhands.errors import Diverged
from manyhands.machine.load import starved_s

WARM_UP = 5
"""Steps before a run counts as steady: the first few make caches, thread pools and buffers."""
MOST_STEPS = 1000
"""The most steps between two flushes, however fast they are: virtual steps take no time."""


@dataclass(kw_only=True)
class TimeSplit:
    """Seconds of the steps on this rank, by what they were spent on."""

    steps: int = 0
    train_s: float = 0.0
    shared_s: float = 0.0
    """Forward and backward passes, which the workers share out."""
    comm_s: float = 0.0
    wait_s: float = 0.0
    gather_s: float = 0.0
    """Part of `shared_s`: gathering the rows of the batches from the data."""
    starved_s: float = 0.0
    """Time in which this thread could have run but had no core, whatever it was doing."""
    exchanges: int = 0
    """Steps in which the ranks exchanged something."""
    lasts: int = 0
    """Those in which this rank was the last to arrive."""

    @property
    def compute_s(self) -> float:
        """Time that is neither communication nor waiting."""
        return max(0.0, self.train_s - self.comm_s - self.wait_s)

    @property
    def serial_s(self) -> float:
        """Compute time of work that every worker repeats, such as the optimiser's step."""
        return max(0.0, self.compute_s - self.shared_s)

    def per_step(self) -> list[float]:
        """Return the seconds of a step that go into shared compute, serial compute, communication and waiting."""
        parts = (self.compute_s - self.serial_s, self.serial_s, self.comm_s, self.wait_s)
        return [part / max(1, self.steps) for part in parts]

    def since(self, earlier: "TimeSplit") -> "TimeSplit":
        """Return the times since `earlier`."""
        return TimeSplit(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})


def exchange_and_waits(calls: Tensor) -> tuple[float, list[float]]:
    """Return the seconds that the exchanges took, and those that each rank waited; `calls` has a row for each rank."""
    exchange_s = float(calls.min(0).values.sum())
    return exchange_s, (calls.sum(1) - exchange_s).clamp_(min=0).tolist()


def last_ranks(calls: Tensor, ends: list[int]) -> Tensor:
    """Return the rank that was the last to arrive in each step with an exchange.

    `calls` has a row for each rank; the calls of step i are those before column `ends[i]` and after the last step's.
    """
    until = torch.nn.functional.pad(calls.cumsum(1), (1, 0))
    took = until[:, ends].diff(dim=1, prepend=until[:, :1])
    least, most = took.aminmax(dim=0)
    return took.argmin(0)[most > least]


def flush_every(interval_s: float, step_s: float) -> float:
    """Return the steps between two flushes that are to be `interval_s` apart, where a step takes `step_s`."""
    if math.isinf(interval_s):
        return math.inf
    return round(min(max(1.0, interval_s / max(step_s, 1e-9)), MOST_STEPS))


@final
@dataclass
class StepMeter:
    """Measures every step, and shares the times with the other workers now and then."""

    comm: Comm
    """The workers."""
    traced: TracedComm
    lanes: int = 0
    """Lanes of the fixed summation tree, or 0 where the order of summation is free."""
    interval_s: float = 0.25
    """Time between two flushes; infinite where the workers meet at the end of an epoch only."""
    every: float = 1
    """Steps between two flushes; each flush sets it anew, from the duration of a step."""
    split: TimeSplit = field(default_factory=TimeSplit)
    warm: TimeSplit | None = None
    """The split at the first flush after the warm-up."""
    step_s: list[float] = field(default_factory=list)
    passes_s: list[float] = field(default_factory=list)
    """Forward and backward pass of each step."""
    shared_s: float = 0.0
    """Forward and backward passes since the last flush."""
    gather_s: float = 0.0
    """Gathering of rows since the last flush."""
    _ends: list[int] = field(default_factory=list)
    """Number of collective calls until the end of each step since the last flush."""
    _losses: list[Tensor] = field(default_factory=list)
    _since: float = 0.0
    _starved_s: float = 0.0

    def start(self) -> None:
        """Start the clock, before the first step and after every pause."""
        self._since, self._starved_s = self.comm.clock(), starved_s()

    @property
    def seldom(self) -> bool:
        """Whether the workers never meet but at the end of an epoch."""
        return math.isinf(self.interval_s)

    @property
    def steady(self) -> TimeSplit:
        """The times after the warm-up; all of them in a run that ended before."""
        late = self.split.since(self.warm or TimeSplit())
        return late if late.steps else self.split

    @property
    def steady_passes_s(self) -> list[float]:
        """The forward and backward pass of each step that `steady` counts."""
        return self.passes_s[self.split.steps - self.steady.steps :]

    @property
    def row_length(self) -> int:
        """Values that this rank brings to the next flush: losses, durations of calls, a step's time, and a stop."""
        return len(self._losses) + len(self.traced.collective_s) + 2

    def add(self, loss: Tensor, seconds: float, shared_s: float, gather_s: float = 0.0) -> bool:
        """Note a step, how long its forward and backward pass took, and how long it gathered rows for it; return
        whether a flush is due."""
        self._losses.append(loss)
        self.shared_s += shared_s
        self.gather_s += gather_s
        self.passes_s.append(shared_s)
        self.step_s.append(seconds)
        self.traced.collective_s.append(self.traced.p2p_s)
        self.traced.p2p_s = 0.0
        self._ends.append(len(self.traced.collective_s))
        return len(self._losses) >= self.every and not self.seldom

    def flush(self, first_step: int, stop: bool) -> tuple[list[float], bool]:
        """Return the global losses of the steps from `first_step` on, and whether any rank wants to stop."""
        count = len(self._losses)
        row = torch.empty(self.row_length, dtype=torch.float64)
        if count:
            row[:count] = torch.stack(self._losses)
        row[count:-2] = torch.tensor(self.traced.collective_s, dtype=torch.float64)
        row[-2] = (self.comm.clock() - self._since) / max(1, count)
        row[-1] = stop
        begun = self.comm.clock()
        rows = self.comm.all_gather(row)
        self._note_time(rows[:, count:-2], count, self.comm.clock() - begun)
        self.every = min(4 * self.every, flush_every(self.interval_s, float(rows[0, -2])))
        dtype = self._losses[0].dtype if count else torch.float64
        totals = self._sum(rows[:, :count].to(dtype)).tolist()
        self.clear()
        for i, loss in enumerate(totals):
            if not math.isfinite(loss):
                raise Diverged(
                    f"the loss became {loss} at step {first_step + i + 1}; try a smaller --lr, or look at the data"
                )
        return totals, bool(rows[:, -1].any())

    def clear(self) -> None:
        """Forget the steps since the last flush."""
        self._losses.clear()
        self.traced.collective_s.clear()
        self._ends.clear()
        self.shared_s = self.gather_s = 0.0

    def _sum(self, losses: Tensor) -> Tensor:
        # One fixed order, however many steps this flush has: the rounding of torch's own sum depends on the shape.
        # The tree continues the one inside each rank, in the same number type.
        ranks = list(losses)
        return join(ranks, subtrees(self.lanes, self.comm.size)) if self.lanes else self.comm.add(ranks)

    def _note_time(self, calls: Tensor, count: int, met_s: float) -> None:
        """Share out the time since the last flush; the gather itself carries next to nothing, so it is waiting."""
        now = self.comm.clock()
        window, self._since = now - self._since, now
        before_s, self._starved_s = self._starved_s, starved_s()
        self.split.starved_s += self._starved_s - before_s
        self.split.gather_s += self.gather_s
        self.split.steps += count
        self.split.train_s += window
        exchange_s = wait_s = 0.0
        if self.comm.size > 1 or self.traced.size > 1:
            exchange_s, waits_s = exchange_and_waits(calls)
            wait_s = waits_s[self.comm.rank] + met_s
        self.split.comm_s += exchange_s
        self.split.wait_s += wait_s
        if self.comm.size > 1 and count:
            last = last_ranks(calls, self._ends)
            self.split.exchanges += len(last)
            self.split.lasts += int((last == self.comm.rank).sum())
        queued = bool(self._losses) and self._losses[0].is_cuda
        # Kernels are queued: the duration of a pass shows later, and only the whole window is a real time.
        self.split.shared_s = self.split.compute_s if queued else self.split.shared_s + self.shared_s
        if self.warm is None and self.split.steps >= WARM_UP:
            self.warm = replace(self.split)
        if queued:
            self.step_s[-count:] = [window / count] * count
            self.passes_s[-count:] = [max(0.0, window - exchange_s - wait_s) / count] * count
