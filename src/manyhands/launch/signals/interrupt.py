"""Answer signals that ask a run to end, and have the kernel end processes whose parent is gone."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from manyhands.launch.signals.stops import STOPS, may_answer


@contextmanager
def handling(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[None]:
    """Install a signal handler for a while; outside the main thread, where Python forbids it, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            if previous is not None:  # None stands for a handler of a C library, which Python cannot set again
                signal.signal(number, previous)


@contextmanager
def stop_on_signal(*, say: bool = True) -> Iterator[threading.Event]:
    """Yield an event that the first stop signal sets; a Ctrl-C after that raises KeyboardInterrupt.

    Other signals may come twice: when a terminal closes, from the kernel and from the shell; from a batch system, some
    time before the limit and at the limit.
    """
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if say and not stop.is_set():
            tell("\nstopping after this step; press Ctrl-C again to stop at once")
        stop.set()

    with handling(filter(may_answer, STOPS), handle):
        yield stop


def tell(sentence: str, end: str = "\n") -> None:
    """Print on stderr, if it is still open: a signal may come because the terminal is gone, or amid other output."""
    with suppress(OSError, ValueError, RuntimeError):
        print(sentence, end=end, file=sys.stderr, flush=True)
