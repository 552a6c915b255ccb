"""Parse Python syntax in one thread at a time.

Before Python 3.11.9 and 3.12.3, threads that build syntax trees at the same time fail with a SystemError (CPython
issue 106905); numpy parses the header of every .npy file.
"""

import threading

PARSING = threading.RLock()
"""Held while syntax is parsed in code that several ranks of a process may run."""
