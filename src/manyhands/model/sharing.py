"""How workers of one host slow each other down: they compete for cores, memory bandwidth and the interpreter's lock.

`calibrate` measures each resource with bare threads on 1 to all cores, independently of task and workers; this takes
seconds. How much of it a task feels follows from the operations of its step, and from the measured slow-down of a few
of its own workers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from manyhands.model.links import Floats
from manyhands.record.calibration import CoreTimes

MOST_QUEUED = 4096
"""Customers up to which mean value analysis iterates; beyond that the station is saturated."""
LOCK_UNCERTAINTY = 1.2
"""Factor by which the lock's hand-over time may differ between the operations of a step and those of bare threads."""
DISTINCT = 0.05
"""Least difference between the slow-downs of memory and of compute that tells which of them limits a task."""


class SlowDown(NamedTuple):
    """Ratio of two times: lower bound, estimate and upper bound."""

    low: float
    value: float
    high: float


def crowded(cores: CoreTimes, few: int, many: int, measured: float = 1.0) -> SlowDown:
    """Return the slow-down of `many` workers relative to `few`, which were `measured` times as slow as one alone.

    It lies between that of compute-bound and that of memory-bound threads; `measured` tells where. Beyond the measured
    cores workers may not slow down further, or queue for the same memory: the estimate is the geometric mean.
    """
    kinds = _means(cores.compute_us), cores.memory_us
    least, most = (max(1.0, _at(us, many) / _at(us, few)) for us in kinds)
    most = max(least, most)
    compute, memory = (_at(us, few) / _at(us, 1) for us in kinds)
    share = min(max(0.0, (measured - compute) / (memory - compute)), 1.0) if memory - compute > DISTINCT else 0.0
    demand = demand_of(few, measured)
    queued = queueing(many, demand) / queueing(min(many, max([few, *cores.compute_us])), demand)
    return SlowDown(least, (least + share * (most - least)) * math.sqrt(queued), most * queued)


def unevenness(cores: CoreTimes, few: int, many: int, num: int) -> Floats:
    """Return `num` quantiles of a core's relative deviation from the mean time: of `many` busy cores minus of `few`."""
    return _profile(cores.compute_us, many, num) - _profile(cores.compute_us, few, num)


def arithmetic_s(cores: CoreTimes, flops: float, threads: int) -> float:
    """Return the time of `flops` floating-point operations on one of `threads` busy cores."""
    return flops / cores.compute_flops * _at(_means(cores.compute_us), threads) * 1e-6


def lock_slow_down(lock_us: Mapping[int, float], few: int, threads: int) -> SlowDown:
    """Return the slow-down of acquiring the lock among `threads` threads relative to two; up to `few` it is certain.

    Beyond all measured threads it may stay constant or grow in proportion: the estimate is the geometric mean.
    """
    longer = max(1.0, _at(lock_us, threads) / _at(lock_us, 2))
    if threads <= few:
        return SlowDown(longer, longer, longer)
    beyond = max(1.0, threads / max([few, *lock_us]))
    low = max(1.0, longer / LOCK_UNCERTAINTY)
    return SlowDown(low, longer * math.sqrt(beyond), longer * beyond * LOCK_UNCERTAINTY)


def lock_s(cores: CoreTimes, threads: int) -> float:
    """Return the service demand of one operation on the lock, among up to as many `threads` as there are cores."""
    return _at(cores.lock_us, threads) * 1e-6


def queue_s(customers: int, demand_s: float, think_s: float) -> float:
    """Return the cycle time of each of `customers` that think for `think_s` and then need one station for `demand_s`.

    By mean value analysis (Reiser and Lavenberg 1980).
    """
    queue_length, cycle_s = 0.0, think_s + demand_s
    for k in range(1, min(customers, MOST_QUEUED) + 1):
        response_s = demand_s * (1 + queue_length)
        cycle_s = think_s + response_s
        queue_length = k * response_s / cycle_s if cycle_s > 0 else 0.0
    return max(cycle_s, customers * demand_s)


def queueing(customers: int, demand: float) -> float:
    """Return the slow-down when `customers` workers share a resource that each uses for `demand` of its time."""
    return queue_s(customers, demand, 1 - demand)


def demand_of(customers: int, slow_down: float) -> float:
    """Return the demand at which `queueing(customers, demand)` is `slow_down`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if queueing(customers, middle) < slow_down else (low, middle)
    return low if slow_down > 1 and customers > 1 else 0.0


def quantiles(samples: Floats, num: int) -> Floats:
    """Return `num` evenly spaced quantiles of the sorted `samples`; the samples themselves where there are `num`."""
    if num == len(samples):
        return samples
    return np.quantile(samples, (np.arange(num) + 0.5) / num, method="hazen")


def _means(us: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {threads: float(np.mean(samples)) for threads, samples in us.items()}


def _profile(us: Mapping[int, Sequence[float]], threads: int, num: int) -> Floats:
    """Return `num` quantiles of a thread's time over the mean, interpolated between thread counts as in `_at`."""
    counts = sorted(us)
    place = float(np.interp(math.log(threads), np.log(counts), range(len(counts))))
    a, b = (quantiles(np.asarray(us[counts[i]]), num) for i in (math.floor(place), math.ceil(place)))
    profile: Floats = a + (place - math.floor(place)) * (b - a)
    profile /= profile.mean()
    return profile


def _at(us: Mapping[int, float], threads: int) -> float:
    """Interpolate in the logarithm of the thread count; constant beyond the measured ones."""
    counts = sorted(us)
    return float(np.interp(math.log(threads), np.log(counts), [us[count] for count in counts]))
