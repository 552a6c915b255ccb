"""The beat of a run: a few times a second the ranks agree on losses, on where the time went, and whether to stop.

One small gather carries it all, so that the steps between two beats cost nothing extra. Of each collective call,
the shortest duration over the ranks is what the exchange took; what a rank spent beyond that, it waited. What a step
sends and receives point to point counts as one such call.
"""

import math
import time
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.comm.exact import join, subtrees
from manyhands.comm.traced import TracedComm
from manyhands.errors import Diverged


@dataclass
class TimeSplit:
    """Where the time of the steps went, on this rank."""

    train_s: float = 0.0
    comm_s: float = 0.0
    wait_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """What is neither exchange nor waiting."""
        return max(0.0, self.train_s - self.comm_s - self.wait_s)


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
    step_s: list[float] = field(default_factory=list)
    _losses: list[Tensor] = field(default_factory=list)
    _interval: int = 1
    _since: float = 0.0

    def open(self) -> None:
        """Start the clock, before the first step and after every pause."""
        self._since = time.perf_counter()

    def add(self, loss: Tensor, seconds: float) -> bool:
        """Note a step; return whether the beat is due."""
        self._losses.append(loss)
        self.step_s.append(seconds)
        self.traced.collective_s.append(self.traced.p2p_s)
        self.traced.p2p_s = 0.0
        return len(self._losses) >= self._interval and math.isfinite(self.interval_s)

    def strike(self, first_step: int, stop: bool) -> tuple[list[float], bool]:
        """Return the global losses since the last beat, and whether any rank wants to stop."""
        count = len(self._losses)
        losses = torch.stack(self._losses).double().cpu() if count else torch.zeros(0, dtype=torch.float64)
        elapsed = time.perf_counter() - self._since
        row = self._row(losses, elapsed / max(1, count), stop)
        here = time.perf_counter()
        rows = self.comm.all_gather(row)
        self._note_time(rows[:, count:-2], count, time.perf_counter() - here)
        steps = min(self.interval_s, 1e6) / max(float(rows[0, -2]), 1e-9)
        self._interval = min(4 * self._interval, max(1, round(steps)))
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
        # The tree continues the one inside each rank, in the same number type.
        return join(list(losses), subtrees(self.lanes, self.comm.size)) if self.lanes else losses.sum(0)

    def _note_time(self, calls: Tensor, count: int, met_s: float) -> None:
        """Share out the time since the last beat; the beat itself carries next to nothing, so it is waiting."""
        now = time.perf_counter()
        window, self._since = now - self._since, now
        self.split.train_s += window
        if self.comm.size > 1 or self.traced.size > 1:
            cheapest = float(calls.min(0).values.sum())
            self.split.comm_s += cheapest
            self.split.wait_s += float(calls[self.comm.rank].sum()) - cheapest + met_s
        self.traced.collective_s.clear()
        if self._losses and self._losses[0].is_cuda:  # kernels are queued: only the whole window is a real time
            self.step_s[-count:] = [window / count] * count
