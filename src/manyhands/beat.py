"""The beat of a run: a few times a second the ranks agree on losses, on where the time went, and whether to stop.

One small gather carries it all, so that the steps between two beats cost nothing extra. Of each collective call,
the shortest duration over the ranks is what the exchange took; what a rank spent beyond that, it waited. What a step
sends and receives point to point counts as one such call.
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

WARM_UP = 5
"""Steps before a run counts as steady: caches, thread pools and buffers are made in the first few."""


MOST_STEPS = 1000
"""Steps between two beats at the most, however fast they are: virtual ones take no time."""


@dataclass(kw_only=True)
class TimeSplit:
    """Where the time of the steps went, on this rank."""

    steps: int = 0
    train_s: float = 0.0
    shared_s: float = 0.0
    """Forward and backward, which the workers share out."""
    comm_s: float = 0.0
    wait_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """What is neither exchange nor waiting."""
        return max(0.0, self.train_s - self.comm_s - self.wait_s)

    @property
    def serial_s(self) -> float:
        """Of that, what every worker repeats."""
        return max(0.0, self.compute_s - self.shared_s)

    def since(self, earlier: "TimeSplit") -> "TimeSplit":
        """Return what came after an earlier moment."""
        return TimeSplit(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})


@final
@dataclass
class Beat:
    """Collects the steps since the last beat, and beats."""

    comm: Comm
    traced: TracedComm
    lanes: int
    """Lanes of the fixed summation tree, or 0 where the order of summation is free."""
    interval_s: float = 0.25
    """Time between two beats."""
    split: TimeSplit = field(default_factory=TimeSplit)
    warm: TimeSplit | None = None
    """The split at the first beat after the warm-up."""
    step_s: list[float] = field(default_factory=list)
    _losses: list[Tensor] = field(default_factory=list)
    _shared_s: float = 0.0
    _interval: int = 1
    _since: float = 0.0

    def open(self) -> None:
        """Start the clock, before the first step and after every pause."""
        self._since = self.comm.clock()

    @property
    def seldom(self) -> bool:
        """Whether the workers never meet but at the end of an epoch."""
        return math.isinf(self.interval_s)

    @property
    def steady(self) -> TimeSplit:
        """What came after the warm-up; all of it, where nothing did."""
        late = self.split.since(self.warm or TimeSplit())
        return late if late.steps else self.split

    def add(self, loss: Tensor, seconds: float, shared_s: float) -> bool:
        """Note a step, and how long its forward and backward pass took; return whether the beat is due."""
        self._losses.append(loss)
        self._shared_s += shared_s
        self.step_s.append(seconds)
        self.traced.collective_s.append(self.traced.p2p_s)
        self.traced.p2p_s = 0.0
        return len(self._losses) >= self._interval and not self.seldom

    def strike(self, first_step: int, stop: bool) -> tuple[list[float], bool]:
        """Return the global losses since the last beat, and whether any rank wants to stop."""
        count = len(self._losses)
        losses = torch.stack(self._losses).double().cpu() if count else torch.zeros(0, dtype=torch.float64)
        elapsed = self.comm.clock() - self._since
        row = self._row(losses, elapsed / max(1, count), stop)
        here = self.comm.clock()
        rows = self.comm.all_gather(row)
        self._note_time(rows[:, count:-2], count, self.comm.clock() - here)
        steps = min(self.interval_s, 1e6) / max(float(rows[0, -2]), 1e-9)
        self._interval = min(4 * self._interval, max(1, round(steps)), MOST_STEPS)
        kind = self._losses[0].dtype if count else torch.float64
        totals = self._sum(rows[:, :count].to(kind)).tolist()
        self._losses.clear()
        for i, loss in enumerate(totals):
            if not math.isfinite(loss):
                raise Diverged(
                    f"the loss became {loss} at step {first_step + i + 1}; try a smaller --lr, or look at the data"
                )
        return totals, bool(rows[:, -1].any())

    def _row(self, losses: Tensor, step_s: float, stop: bool) -> Tensor:
        calls = torch.tensor(self.traced.collective_s, dtype=torch.float64)
        return torch.cat([losses, calls, torch.tensor([step_s, float(stop)], dtype=torch.float64)])

    def _sum(self, losses: Tensor) -> Tensor:
        # One fixed order, however many steps this beat has: torch's own sum rounds by the shape of what it sums.
        # The tree continues the one inside each rank, in the same number type.
        ranks = list(losses)
        return join(ranks, subtrees(self.lanes, self.comm.size)) if self.lanes else self.comm.add(ranks)

    def _note_time(self, calls: Tensor, count: int, met_s: float) -> None:
        """Share out the time since the last beat; the beat itself carries next to nothing, so it is waiting."""
        now = self.comm.clock()
        window, self._since = now - self._since, now
        self.split.steps += count
        self.split.train_s += window
        if self.comm.size > 1 or self.traced.size > 1:
            cheapest = float(calls.min(0).values.sum())
            self.split.comm_s += cheapest
            self.split.wait_s += float(calls[self.comm.rank].sum()) - cheapest + met_s
        self.traced.collective_s.clear()
        queued = bool(self._losses) and self._losses[0].is_cuda
        # Kernels are queued: what a pass of them took shows later, and only the whole window is a real time.
        self.split.shared_s = self.split.compute_s if queued else self.split.shared_s + self._shared_s
        self._shared_s = 0.0
        if self.warm is None and self.split.steps >= WARM_UP:
            self.warm = replace(self.split)
        if queued:
            self.step_s[-count:] = [window / count] * count
