#!/usr/bin/env python3
"""Start a command on one of the hosts of `network.py`, in the place of ssh: network_host.py HOST COMMAND...

A host is a network namespace. MPICH takes ranks for neighbours that could share memory unless they have another
hostname and other shared memory, so these are the host's own, too. A host should have cores of its own: of those that
all share here, a rank that wakes up gets one at once, whoever else runs.
"""

import ctypes
import os
import platform
import struct
import sys

NICE, SLICE_NS = -15, 100_000
"""A short slice lets a thread that wakes up take the core from one that has not used up its own."""
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, for which there is no function in C."""
ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def hurry(pid: int, nice: int = NICE, slice_ns: int = SLICE_NS) -> None:
    """Let a process (0: this one, and what it starts) have a core soon after it wakes up."""
    given = ATTRIBUTES.pack(ATTRIBUTES.size, 0, 0, nice, 0, slice_ns, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SCHED_SETATTR[platform.machine()], pid, given, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    """Become the command on the host."""
    words = [
        word for i, word in enumerate(sys.argv[1:]) if i or not word.startswith("-")
    ]  # ssh's own options come first
    host, command = words[0], " ".join(words[1:])
    hurry(0)
    named = f"hostname {host} && exec {command}"
    os.execvp("ip", ["ip", "netns", "exec", host, "unshare", "--uts", "--ipc", "sh", "-c", named])


if __name__ == "__main__":
    main()
