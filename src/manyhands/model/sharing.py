"""How workers of a host disturb each other: they share what its cores can do at once, its memory, and, as threads of
one process, the interpreter's lock, which each operation gives away and wants back.

`calibrate` measures that with bare threads, as many as there are cores, whatever the number of workers; it is a matter
of seconds and of no task. How much of it a task feels, what its step has to do tells, and its own workers: few take
longer than one alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from manyhands.model.links import Floats
from manyhands.record.calibration import CoreTimes

MOST_QUEUED = 4096
"""Workers up to which a queue is followed one by one; beyond that what they queue for is busy all the time."""
DOUBT = 1.2
"""By which factor the lock may take longer or shorter to get between operations of a step than between bare threads."""
TELLING = 0.05
"""By how much memory must disturb a few more than computing does, to tell which of them a task is about."""


class Growth(NamedTuple):
    """How many times as long, at least, probably, and at most."""

    low: float
    value: float
    high: float


def crowded(cores: CoreTimes, few: int, many: int, measured: float = 1.0) -> Growth:
    """Return how many times as long many workers take as a few, which took `measured` times as long as one alone.

    At best as much longer as computing does, at worst as memory; what the few took tells where between. Beyond the
    cores that were measured they may take no longer, or queue for the same memory; the geometric mean is between.
    """
    kinds = _means(cores.compute_us), cores.memory_us
    least, most = (max(1.0, _at(us, many) / _at(us, few)) for us in kinds)
    most = max(least, most)
    compute, memory = (_at(us, few) / _at(us, 1) for us in kinds)
    share = min(max(0.0, (measured - compute) / (memory - compute)), 1.0) if memory - compute > TELLING else 0.0
    demand = demand_of(few, measured)
    queued = queueing(many, demand) / queueing(min(many, max([few, *cores.compute_us])), demand)
    return Growth(least, (least + share * (most - least)) * math.sqrt(queued), most * queued)


def unevenness(cores: CoreTimes, few: int, many: int, num: int) -> Floats:
    """Return how much further from their mean, as a share of it, many cores are than a few: the quickest first.

    As many of them as `num` says, evenly spread between the quickest and the slowest.
    """
    return _profile(cores.compute_us, many, num) - _profile(cores.compute_us, few, num)


def arithmetic_s(cores: CoreTimes, flops: float, threads: int) -> float:
    """Return what so many floating-point operations take one of so many busy cores."""
    return flops / cores.compute_flops * _at(_means(cores.compute_us), threads) * 1e-6


def handing_on(lock_us: Mapping[int, float], few: int, threads: int) -> Growth:
    """Return how many times as long as two threads so many take to get the lock; how a few share it is measured.

    Beyond all that was measured it may take no longer, or grow with the threads; the geometric mean is between.
    """
    longer = max(1.0, _at(lock_us, threads) / _at(lock_us, 2))
    if threads <= few:
        return Growth(longer, longer, longer)
    beyond = max(1.0, threads / max([few, *lock_us]))
    return Growth(max(1.0, longer / DOUBT), longer * math.sqrt(beyond), longer * beyond * DOUBT)


def lock_s(cores: CoreTimes, threads: int) -> float:
    """Return for how long an operation keeps the lock from others, of up to as many threads as there are cores."""
    return _at(cores.lock_us, threads) * 1e-6


def queue_s(customers: int, demand_s: float, think_s: float) -> float:
    """Return how long a round takes each of so many customers: it thinks, and needs for so long what all queue for.

    By mean value analysis (Reiser and Lavenberg 1980).
    """
    waiting, whole_s = 0.0, think_s + demand_s
    for k in range(1, min(customers, MOST_QUEUED) + 1):
        served_s = demand_s * (1 + waiting)
        whole_s = think_s + served_s
        waiting = k * served_s / whole_s if whole_s > 0 else 0.0
    return max(whole_s, customers * demand_s)


def queueing(customers: int, demand: float) -> float:
    """Return how many times as long as alone a step takes when so many queue for what each needs for such a share."""
    return queue_s(customers, demand, 1 - demand)


def demand_of(customers: int, factor: float) -> float:
    """Return the demand with which so many customers take so many times as long as alone."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if queueing(customers, middle) < factor else (low, middle)
    return low if factor > 1 and customers > 1 else 0.0


def quantiles(samples: Floats, num: int) -> Floats:
    """Return as many quantiles, evenly spread; of as many samples, which are in order, the samples."""
    if num == len(samples):
        return samples
    return np.quantile(samples, (np.arange(num) + 0.5) / num, method="hazen")


def _means(us: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {threads: float(np.mean(each)) for threads, each in us.items()}


def _profile(us: Mapping[int, Sequence[float]], threads: int, num: int) -> Floats:
    """Return what some threads take, over their mean; interpolated as `_at` does, quantile by quantile."""
    counts = sorted(us)
    place = float(np.interp(math.log(threads), np.log(counts), range(len(counts))))
    low, high = counts[math.floor(place)], counts[math.ceil(place)]
    a, b = (quantiles(np.asarray(us[each]), num) for each in (low, high))
    found: Floats = a + (place - math.floor(place)) * (b - a)
    found /= found.mean()
    return found


def _at(us: Mapping[int, float], threads: int) -> float:
    """Interpolate between numbers of threads; beyond those that were measured it stays as it is."""
    counts = sorted(us)
    return float(np.interp(math.log(threads), np.log(counts), [us[each] for each in counts]))
