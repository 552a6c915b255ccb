"""The entry point: it imports next to nothing, so that Ctrl-C is answered in one word from the first moment on."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress

from manyhands.launch.signals.stops import STOPS, may_answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

STOPPED = 130


def main() -> None:
    """Run the command line and exit: 0 it went well, 1 it failed, 2 a bad request, 130 stopped."""
    before = {number: signal.signal(number, _stop) for number in STOPS if may_answer(number)}
    try:
        _guard_rank()
        from manyhands.cli.streams import surviving_streams

        with surviving_streams():
            status = _run()
            sys.stderr.flush()
    except KeyboardInterrupt:  # a second one
        status = STOPPED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    # What comes now is Python's own work, and takes a moment: nothing is left to stop.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    if _a_rank_is_stuck():
        os._exit(status)
    sys.exit(status)


def _guard_rank() -> None:
    """Go on as a rank that a guard watches, where mpiexec, srun or torchrun has started this process among others."""
    from manyhands.launch.environment import outer_world

    if outer_world() is not None:
        from manyhands.launch.guard.process import print_failure, start_guard

        start_guard(print_failure)


def _run() -> int:
    try:
        from manyhands.cli.app import run

        return run()
    except KeyboardInterrupt:
        _say_stopped()
        _let_guard_know()
        return STOPPED


def _stop(number: int, frame: FrameType | None) -> None:
    """Answer Ctrl-C and the like; during an import by leaving at once: libraries catch all errors there, this one too.

    A run has an answer of its own: it ends after the step.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _say_stopped()
            _let_guard_know()
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _say_stopped() -> None:
    try:
        from manyhands.launch.environment import leads

        alone = leads()
    except ImportError:  # it is what was being imported
        alone = True
    if alone and sys.stderr is not None:
        with suppress(OSError):  # nobody may be reading it
            print("manyhands: stopped", file=sys.stderr, flush=True)


def _let_guard_know() -> None:
    """Keep this process's guard, if it has one, from reporting an end that the user asked for."""
    with suppress(ImportError):
        from manyhands.launch.guard.state import FailureKnown, own_state

        own_state().known = FailureKnown.USER


def _a_rank_is_stuck() -> bool:
    """Whether a thread of a failed run has not come back: what Python and torch take down at exit is in use there."""
    local = sys.modules.get("manyhands.launch.in_process")
    return local is not None and local.a_rank_is_left()


if __name__ == "__main__":
    main()
