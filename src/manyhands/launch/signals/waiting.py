"""Decide how long to wait for a run that was asked to stop, from the length of its steps, and say whom we wait for."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, final

from manyhands.launch.signals.interrupt import tell
from manyhands.training.checkpoint import checkpoints

LOOK_S = 1.0
SAY_S = 10.0
"""Time between two messages about whom we wait for."""
LEAST_S = 120.0
"""How long, at the least, no rank may make progress before the run is given up."""
MANY = 3.0
"""The same as a multiple of the longest step so far."""
FIRST_S = 600.0
"""The same before the first step has ended, so that the length of a step is not known."""
LEAVE_S = 1.0
"""How long a last call may take to end; it may be printing to a terminal that takes nothing."""
NAMED = 8
"""The most ranks that a message names one by one."""


@final
class StopMonitor:
    """Follows the ranks' steps; after a request to stop, says whom we wait for, and tells when to give up."""

    def __init__(
        self,
        steps: Callable[[], Sequence[int]],
        checkpoints: Path,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the step of every rank with `steps`; `stop` is set by a request to stop."""
        self._read_steps, self._checkpoints, self._stop, self._clock = steps, checkpoints, stop, clock
        self._steps, self._since, self._longest_s = list(steps()), clock(), 0.0
        self._looked = self._stop_began = self._said = clock()

    def look(self) -> bool:
        """Read the steps; return whether ranks that shall stop have made no progress for too long."""
        now = self._clock()
        if now - self._looked < LOOK_S:
            return False
        self._looked = now
        steps = list(self._read_steps())
        if steps != self._steps:
            if min(self._steps) >= 0:  # the time before the first step is not a step's
                self._longest_s = max(self._longest_s, now - self._since)
            self._steps, self._since = steps, now
        if not self._stop.is_set():
            self._stop_began = self._said = now
            return False
        if now - self._said >= SAY_S:
            self._said = now
            usual = f", and steps took up to {self._longest_s:.0f} s" if self._longest_s >= LOOK_S else ""
            tell(f"manyhands: waiting for {self._whom()}, {now - self._since:.0f} s now{usual}; Ctrl-C stops at once")
        limit_s = max(LEAST_S, MANY * self._longest_s) if self._longest_s else FIRST_S
        return now - max(self._stop_began, self._since) > limit_s

    def look_or_give_up(self) -> None:
        """Read the steps; give up if ranks that shall stop have made no progress for too long."""
        if self.look():
            self.give_up()

    def give_up(self) -> NoReturn:
        """Say whom we waited for, and name the last checkpoint; end the run."""
        paths = checkpoints(self._checkpoints)
        kept = f"the last checkpoint is '{paths[-1]}'" if paths else "there is no checkpoint"
        tell(f"manyhands: waited {self._clock() - self._stop_began:.0f} s for {self._whom()}, in vain; {kept}")
        raise KeyboardInterrupt

    def _whom(self) -> str:
        """Name the ranks that are at the earliest step."""
        earliest = min(self._steps)
        ranks = [str(rank) for rank, step in enumerate(self._steps) if step == earliest]
        if len(ranks) == 1:
            names = f"rank {ranks[0]}"
        else:
            names = f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}" if len(ranks) <= NAMED else f"{len(ranks)} ranks"
        return f"{names} to {f'end step {earliest}' if earliest >= 0 else 'begin'}"


@contextmanager
def repeating(call: Callable[[], object], period_s: float) -> Iterator[None]:
    """Call a function every `period_s` seconds in a thread, while this one computes a step."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(period_s):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LEAVE_S)
