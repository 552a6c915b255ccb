"""A made-up step whose pieces take known shares: what a profile finds of them, and what stacks looked at from outside.

The pieces are a matrix product, several tiny products, a loop in Python, and a hundred calls of a function that does
nothing: as different as possible in how often they call and who holds the interpreter's lock.
"""

import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType

import torch

from manyhands.profiling.lens import Lens, Pace
from manyhands.record.run import Pulse

LOOK_S = 0.005
"""Seconds between two looks at the stack, on average."""
SWITCH_S = 1e-4
"""How long a thread may keep the interpreter's lock, as in a run."""

large, small = torch.randn(200, 200), torch.randn(8, 8)
large_out, small_out = torch.empty(200, 200), torch.empty(8, 8)


def product() -> None:
    """Multiply once."""
    torch.mm(large, large, out=large_out)


def tiny_products() -> None:
    """Multiply a little, several times."""
    for _ in range(5):
        torch.mm(small, small, out=small_out)


def python_loop() -> int:
    """Count in Python."""
    total = 0
    for i in range(800):
        total += i * i
    return total


def hundred_calls() -> None:
    """Call a function that does nothing."""
    for _ in range(100):
        _nothing()


def _nothing() -> None:
    pass


PIECES: dict[str, Callable[[], object]] = {
    "product": product,
    "tiny_products": tiny_products,
    "python_loop": python_loop,
    "hundred_calls": hundred_calls,
}


class _Nobody:
    """A watch that nobody looks at."""

    def at(self, step: int) -> None:
        """Do nothing."""

    def stop_asked(self) -> bool:
        """Never."""
        return False

    def pulse(self, pulse: Pulse) -> None:
        """Do nothing."""


def compare(steps: int) -> dict[str, dict[str, float]]:
    """Return each piece's share: as it is, as the profile tells it, and as a thread that looks at the stack does."""
    threads, patience = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    try:
        return {"true": _true(steps), "profile": _profiled(steps), "stacks": _looked_at(steps)}
    finally:
        torch.set_num_threads(threads)
        sys.setswitchinterval(patience)


def _true(steps: int) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in PIECES}
    for _ in range(steps):
        for name, piece in PIECES.items():
            begun = time.perf_counter()
            piece()
            took[name].append(time.perf_counter() - begun)
    return _shares({name: statistics.median(seconds) for name, seconds in took.items()})


def _profiled(steps: int) -> dict[str, float]:
    lens = Lens(_Nobody(), Pace(20, 23), within=_run.__code__)
    try:
        _run(lens, steps)
    finally:
        lens.close()
    lens.finish()
    toll = lens.toll()
    found = {code.co_name: function.total_time.net(toll) for code, function in lens.tally.functions.items()}
    return _shares({name: found[name] for name in PIECES})


def _run(lens: Lens, steps: int) -> None:
    for step in range(steps):
        lens.at(step)
        for piece in PIECES.values():
            piece()


def _looked_at(steps: int) -> dict[str, float]:
    seen: Counter[str] = Counter()
    done, rank = threading.Event(), threading.get_ident()
    jitter = random.Random(0)

    def look() -> None:
        while not done.wait(LOOK_S * jitter.uniform(0.5, 1.5)):
            frame: FrameType | None = sys._current_frames()[rank]
            while frame is not None and frame.f_code.co_name not in PIECES:
                frame = frame.f_back
            if frame is not None:
                seen[frame.f_code.co_name] += 1

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    for _ in range(steps):
        for piece in PIECES.values():
            piece()
    done.set()
    looker.join()
    return _shares({name: seen[name] for name in PIECES})


def _shares(values: dict[str, float]) -> dict[str, float]:
    total = max(sum(values.values()), 1e-12)
    return {name: value / total for name, value in values.items()}
