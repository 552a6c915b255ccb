"""How long threads wait for the interpreter's lock, which each operation of theirs gives away and wants back.

The more threads want it, the longer it takes to hand it on, up to a point: `calibrate` measures that with bare threads,
as many as there are cores, which is a matter of seconds and of no task. What a step of two workers takes more than that
of one tells how long it needs the lock; so steps of more workers follow (a closed queue, Reiser and Lavenberg 1980).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

MOST_QUEUED = 4096
"""Workers up to which a queue is followed one by one; beyond that what they queue for is busy all the time."""
DOUBT = 1.2
"""By which factor a hand-over may take longer or less between operations of a step than between bare threads."""


class Growth(NamedTuple):
    """How many times as long, at least, probably, and at most."""

    low: float
    value: float
    high: float


def handing_on(lock_us: Mapping[int, float], threads: int) -> Growth:
    """Return how many times as long it takes to get the lock, with so many threads, as with two.

    Beyond those that were measured it may take no longer, or grow with the threads; the geometric mean is between.
    """
    if threads <= 2:
        return Growth(1.0, 1.0, 1.0)
    known = dict(sorted(lock_us.items())) or {2: 1.0}
    most = max(known)
    measured = float(np.interp(math.log(threads), np.log(list(known)), list(known.values()))) / known[2]
    low = max(1.0, measured)
    if threads <= most:
        return Growth(max(1.0, low / DOUBT), low, low * DOUBT)
    return Growth(low, low * math.sqrt(threads / most), low * threads / most)


def held_s(alone_s: float, two_s: float) -> float:
    """Return for how long a step needs the lock that takes so long alone, and so long beside another worker."""
    if two_s >= 2 * alone_s:
        return two_s / 2  # one of them always has it
    return math.sqrt(max(0.0, two_s - alone_s) * alone_s)


def queue_s(customers: int, demand_s: float, think_s: float) -> float:
    """Return how long a round takes each of so many customers: it thinks, and needs for so long what all queue for."""
    waiting, whole_s = 0.0, think_s + demand_s
    for k in range(1, min(customers, MOST_QUEUED) + 1):
        served_s = demand_s * (1 + waiting)
        whole_s = think_s + served_s
        waiting = k * served_s / whole_s if whole_s > 0 else 0.0
    return max(whole_s, customers * demand_s)
