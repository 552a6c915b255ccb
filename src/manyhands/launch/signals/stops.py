"""The signals that ask a run to end."""

import signal

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Sent by Ctrl-C, by batch systems before the time limit, and by a terminal that closes."""


def may_answer(number: signal.Signals) -> bool:
    """Tell whether we may handle a signal: nohup ignores SIGHUP, and a user's program may handle SIGUSR1 itself."""
    handler = signal.getsignal(number)
    if handler == signal.SIG_IGN:
        return False
    ours = str(getattr(handler, "__module__", "")).startswith("manyhands.")
    return ours or handler == signal.SIG_DFL or number in (signal.SIGINT, signal.SIGTERM)
