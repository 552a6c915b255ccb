"""End what is left of a Ray when the process that started it has ended, however it ended, and remove its folder.

Run as a file of its own, outside the package: `python -I -S ray_guard.py FOLDER`, with the token of that Ray as the
first line of the input, which stays open for as long as the Ray is wanted. Ray's own processes end with the one that
started them, but some only after a minute.
"""

import os
import shutil
import signal
import sys
from pathlib import Path


def processes_with(token: str) -> list[int]:
    """Return the processes that were started with this token in their environment, on systems that tell (Linux)."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if token.encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def main() -> None:
    """Wait, then clean up."""
    token = sys.stdin.readline().strip()
    sys.stdin.read()
    for pid in processes_with(token) if token else ():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
