"""How a run is ended from outside: Ctrl-C asks it to, and the kernel sees to it when a parent is gone."""

import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, on systems that can (Linux)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, number)


@contextmanager
def stop_on_signal(*, say: bool = True) -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into an event, a second one into KeyboardInterrupt.

    Outside the main thread, where Python forbids it, do nothing.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        if say:
            print("\nstopping after this step; press Ctrl-C again to stop at once", file=sys.stderr)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
