"""End the processes of a Ray when the process that started it has ended, however that ended, and remove its folder.

Run as a file of its own, outside the package: `python -I -S guard.py FOLDER`; its input stays open for as long as
the Ray is wanted. Ray's own processes end with the one that started them too, but some only after a minute.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

ATTEMPTS = 50
PAUSE_S = 0.1


def users_of(folder: str) -> list[int]:
    """Return the processes that have files of a folder open, on systems that tell (Linux): Ray's write logs there."""
    pids = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has ended, or belongs to somebody else
            if os.readlink(link).startswith(folder + os.sep):
                pids.add(int(link.parts[2]))
    return sorted(pids)


def main() -> None:
    """Wait for the end of the input, then kill and remove until nothing is left: processes may still be starting."""
    folder, starter = sys.argv[1], os.getppid()
    sys.stdin.read()
    for _ in range(ATTEMPTS):
        users = [pid for pid in users_of(folder) if pid != starter]  # if it is there, it still has Ray's library
        for pid in users:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        if not users and not os.path.exists(folder):
            return
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
