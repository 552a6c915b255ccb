"""How a run is ended from outside: signals ask it to, and the kernel sees to it when a parent is gone."""

import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from manyhands.launch.signals.stops import STOPS, may_answer

PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, on systems that can (Linux)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, number)


@contextmanager
def stop_on_signal(*, say: bool = True) -> Iterator[threading.Event]:
    """Turn the first signal that asks the run to end into an event, and Ctrl-C after that into KeyboardInterrupt.

    Other signals may come twice: a closed terminal's from the kernel and from the shell, a batch system's when the
    time is nearly up and when it is. Outside the main thread, where Python forbids it, do nothing.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if say and not asked.is_set():
            tell("\nstopping after this step; press Ctrl-C again to stop at once")
        asked.set()

    before = {number: signal.signal(number, handle) for number in STOPS if may_answer(number)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            if handler is not None:  # as of one that a library has set, which Python cannot set again
                signal.signal(number, handler)


def tell(sentence: str, end: str = "\n") -> None:
    """Print on stderr, if it is still there: a signal may come because the terminal is gone, or amid other output."""
    with suppress(OSError, ValueError, RuntimeError):
        print(sentence, end=end, file=sys.stderr, flush=True)
