"""Which signals ask a run to end."""

import signal

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What asks a run to end: Ctrl-C, a batch system before the time is up, a terminal that is closed."""


def may_answer(number: signal.Signals) -> bool:
    """Whether a signal is ours: nohup has SIGHUP ignored, and a user's program may have its own use for SIGUSR1."""
    handler = signal.getsignal(number)
    if handler == signal.SIG_IGN:
        return False
    ours = str(getattr(handler, "__module__", "")).startswith("manyhands.")
    return ours or handler == signal.SIG_DFL or number in (signal.SIGINT, signal.SIGTERM)
