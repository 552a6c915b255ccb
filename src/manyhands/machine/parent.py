"""End with the parent process, on systems where the kernel can see to it."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, on systems that can (Linux)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, number)
