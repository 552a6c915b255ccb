"""How long a run that was asked to stop is waited for: as long as its steps take, and not without a word."""

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
"""Time between two words about what is waited for."""
LEAST_S = 120.0
"""How long no rank may get any further, at the least, before the run is given up."""
MANY = 3.0
"""How many times as long as the longest step that was seen."""
FIRST_S = 600.0
"""The same where no step has ended yet, so that nothing is known of their length."""
NAMED = 8
"""Ranks that are named one by one."""


@final
class Patience:
    """Follows how far the ranks are; once a stop was asked for, says whom it waits for, and when it waits no longer."""

    def __init__(self, steps: Callable[[], Sequence[int]], checkpoints: Path, *, clock: Callable[[], float]) -> None:
        self._steps, self._checkpoints, self._clock = steps, checkpoints, clock
        self._at, self._since, self._longest_s = list(steps()), clock(), 0.0
        self._looked = self._asked = self._said = clock()

    @property
    def limit_s(self) -> float:
        """How long no rank may get any further."""
        return max(LEAST_S, MANY * self._longest_s) if self._longest_s else FIRST_S

    def look(self, *, stop: bool) -> bool:
        """Note what has changed; return whether ranks that shall stop have not got any further for too long."""
        now = self._clock()
        if now - self._looked < LOOK_S:
            return False
        self._looked = now
        steps = list(self._steps())
        if steps != self._at:
            if min(self._at) >= 0:  # what comes before the first is more than a step, or less
                self._longest_s = max(self._longest_s, now - self._since)
            self._at, self._since = steps, now
        if not stop:
            self._asked = self._said = now
            return False
        if now - self._said >= SAY_S:
            self._said = now
            usual = f", and steps took up to {self._longest_s:.0f} s" if self._longest_s >= LOOK_S else ""
            tell(f"manyhands: waiting for {self._whom()}, {now - self._since:.0f} s now{usual}; Ctrl-C stops at once")
        return now - max(self._asked, self._since) > self.limit_s

    def give_up(self) -> NoReturn:
        """Say what was waited for in vain, and what is left of the run; end it."""
        found = checkpoints(self._checkpoints)
        kept = f"the last checkpoint is '{found[-1]}'" if found else "there is no checkpoint"
        tell(f"manyhands: waited {self._clock() - self._asked:.0f} s for {self._whom()}, in vain; {kept}")
        raise KeyboardInterrupt

    def _whom(self) -> str:
        """Name the ranks that are at the earliest step."""
        step = min(self._at)
        last = [str(rank) for rank, its in enumerate(self._at) if its == step]
        if len(last) == 1:
            names = f"rank {last[0]}"
        else:
            names = f"ranks {', '.join(last[:-1])} and {last[-1]}" if len(last) <= NAMED else f"{len(last)} ranks"
        return f"{names} to {f'end step {step}' if step >= 0 else 'begin'}"


def follow(steps: Callable[[], Sequence[int]], checkpoints: Path) -> Patience:
    """Return a new one, with the system's clock."""
    return Patience(steps, checkpoints, clock=time.monotonic)


@contextmanager
def saying_whom(patience: Patience, stop: threading.Event) -> Iterator[None]:
    """Have a thread say what is waited for while this one is in a step; to give up is left to the user."""
    done = threading.Event()

    def say() -> None:
        while not done.wait(LOOK_S):
            patience.look(stop=stop.is_set())

    threading.Thread(target=say, name="manyhands stopping", daemon=True).start()
    try:
        yield
    finally:
        done.set()
