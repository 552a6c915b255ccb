"""The entry point: it imports next to nothing, so that Ctrl-C is answered from the first moment on."""

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
            try:
                from manyhands.cli.app import run

                status = run()
            except KeyboardInterrupt:
                _report_stop()
                status = STOPPED
            sys.stderr.flush()
    except KeyboardInterrupt:  # a second one
        status = STOPPED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    # Python's own shutdown takes a moment, and has nothing left to stop.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    in_process = sys.modules.get("manyhands.launch.in_process")
    if in_process is not None and in_process.a_rank_is_left():  # it uses what Python and torch take down at exit
        os._exit(status)
    sys.exit(status)


def _guard_rank() -> None:
    """Start a guard over this process, where mpiexec, srun or torchrun has started it as one rank of several."""
    from manyhands.launch.environment import outer_world

    if outer_world() is not None:
        from manyhands.launch.guard.process import print_failure, start_guard

        start_guard(print_failure)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`; during an import exit at once, since libraries catch all errors there, even this one.

    While a run goes on, its own handler is installed instead: the run ends after the step.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _report_stop()
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _report_stop() -> None:
    """Print that the command was stopped, and keep the guard of a rank from reporting that as a failure."""
    try:
        from manyhands.launch.environment import leads

        alone = leads()
    except ImportError:  # the stop came while it was being imported
        alone = True
    if alone and sys.stderr is not None:
        with suppress(OSError):  # nobody may be reading it
            print("manyhands: stopped", file=sys.stderr, flush=True)
    with suppress(ImportError):
        from manyhands.launch.guard.state import FailureKnown, own_state

        own_state().known = FailureKnown.USER


if __name__ == "__main__":
    main()
