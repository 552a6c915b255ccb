"""Ctrl-C asks a run to end after the step it is in; a second one ends it at once."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signal(*, say: bool = True) -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into an event; outside the main thread, where Python forbids it, do nothing."""
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
